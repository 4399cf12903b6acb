"use strict";

// Tables that a click on a column's name sorts; what has no value stays at the end.

const MISSING = new Set(["", "—"]);

// The number with which a cell begins (1.39 ± 0.02, −0.12 (…), 7.6e-5, 2 + 1 diverged), else null.
function leadingNumber(text) {
  const found = text.replaceAll("−", "-").replaceAll(",", "").match(/^[-+]?\d+(\.\d+)?(e[-+]?\d+)?/);
  return found ? Number(found[0]) : null;
}

// Text as words and numbers in turn, "pearson (lr=0.03)" as "pearson (lr=", 0.03, ")": the browser's own
// numeric order reads the digits behind a point as a whole number.
function partsOf(text) {
  return text.split(/((?:(?<==)-)?\d+(?:\.\d+)?(?:e[-+]?\d+)?)/).map((part, i) => (i % 2 ? Number(part) : part));
}

function compareTexts(a, b) {
  const [x, y] = [leadingNumber(a), leadingNumber(b)];
  if (x !== null && y !== null && x !== y) return x - y;
  if ((x === null) !== (y === null)) return x === null ? 1 : -1; // words after numbers
  const [ours, theirs] = [partsOf(a), partsOf(b)];
  for (let i = 0; i < Math.min(ours.length, theirs.length); i += 1) {
    const order = i % 2 ? ours[i] - theirs[i] : ours[i].localeCompare(theirs[i]);
    if (order) return order;
  }
  return ours.length - theirs.length;
}

// Names as buttons; `cell(row, column)` is the text to go by. The way of the last click turns.
function sortable(names, rows, cell, place) {
  const order = { column: null, up: true };
  names.forEach((name, column) => {
    if (!name.textContent) return;
    const text = name.textContent;
    name.replaceChildren(element("button", { class: "sort", text, title: `sort by ${text}`, onclick: () => {
      Object.assign(order, { column, up: order.column === column ? !order.up : true });
      const way = order.up ? 1 : -1;
      const sorted = rows.map((row, i) => [row, cell(row, column).trim(), i]).sort(([, a, i], [, b, j]) =>
        MISSING.has(a) - MISSING.has(b) || way * compareTexts(a, b) || i - j);
      place.append(...sorted.map(([row]) => row));
      names.forEach((other) => other.removeAttribute("aria-sort"));
      name.setAttribute("aria-sort", order.up ? "ascending" : "descending");
    } }));
  });
}

for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.querySelector("tbody");
  // On a phone a row is a list of names and values, so each value needs the name of its column.
  const heads = [...table.querySelectorAll("thead th")].map((head) => head.textContent);
  for (const row of body.rows) [...row.cells].forEach((value, i) => { value.dataset.head = heads[i]; });
  table.classList.add("cards");
  sortable([...table.querySelectorAll("thead th")], [...body.rows], (row, column) => row.cells[column].textContent, body);
}
for (const head of document.querySelectorAll(".runs-head")) {
  const list = head.nextElementSibling;
  const rows = [...list.children];
  // The first column has the marks that open a row.
  const cell = (row, column) => row.querySelector("summary").children[column - 1].textContent;
  sortable([...head.children], rows, cell, list);
}
// The beginning of a long list, and a button for all of it.
for (const list of document.querySelectorAll(".folded")) {
  const button = element("button", { class: "unfold", text: list.dataset.fold, onclick: () => unfold(list, button) });
  (list.closest("table") ?? list).after(button);
}

function unfold(list, button) {
  list.classList.remove("folded");
  button.remove();
}
