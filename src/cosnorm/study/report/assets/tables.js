"use strict";

// Tables that a click on a column's name sorts; what has no value stays at the end.

const MISSING = new Set(["", "—"]);

// The number with which a cell begins (1.39 ± 0.02, −0.12 (…), 7.6e-5, 2 + 1 diverged), else null.
function leadingNumber(text) {
  const found = text.replaceAll("−", "-").replaceAll(",", "").match(/^[-+]?\d+(\.\d+)?(e[-+]?\d+)?/);
  return found ? Number(found[0]) : null;
}

function compareTexts(a, b) {
  const [x, y] = [leadingNumber(a), leadingNumber(b)];
  if (x !== null && y !== null && x !== y) return x - y;
  if ((x === null) !== (y === null)) return x === null ? 1 : -1; // words after numbers
  return a.localeCompare(b, undefined, { numeric: true });
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
