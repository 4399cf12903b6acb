"use strict";

// The values of the curves at one evaluation, beside a line through it.

const ROWS = 14; // of a tip; of more curves, those nearest to the pointer

function hideTip(chart) {
  chart.tip.hidden = true;
  chart.marks.replaceChildren();
}

// Emphasise a group's curve among the others, or none.
function point(chart, index) {
  const wanted = index !== null && chart.on[index] ? index : null;
  if (wanted === chart.focus) return wanted === null ? hideTip(chart) : null;
  chart.focus = wanted;
  return chart.draw();
}

// Every evaluation of the curves shown, in order.
function evaluations(chart) {
  const all = new Set();
  for (const { group } of chart.visible()) {
    for (const x of chart.curve(group, group.factor)[0]) all.add(x);
  }
  return [...all].sort((a, b) => a - b);
}

// To the next evaluation or the one before; where it is out of view, the view follows.
function stepTip(chart, by) {
  const all = evaluations(chart);
  if (!all.length) return;
  const { x0, x1, y0, y1 } = chart.range();
  const fresh = chart.cursor === null || chart.tip.hidden;
  const here = nearest(all, fresh ? x1 : chart.cursor);
  const next = fresh && Math.abs(by) === 1 ? here : here + by;
  const x = all[Math.max(0, Math.min(all.length - 1, next))];
  if (chart.view && (x < x0 || x > x1)) {
    const start = Math.max(0, Math.min(chart.fullRange().x1 - (x1 - x0), x - (x1 - x0) / 2));
    chart.zoom({ x0: start, x1: start + (x1 - x0), y0, y1 });
  }
  showAt(chart, chart.scales(), x, null);
}

// The evaluation nearest to the pointer; of many curves, the one under it is emphasised.
function showTip(chart, px, py) {
  const s = chart.scales();
  const wanted = Math.min(s.range.x1, Math.max(s.range.x0, s.toX(px)));
  const all = evaluations(chart);
  if (!all.length) return hideTip(chart);
  if (chart.visible().length > CROWD) emphasise(chart, s, wanted, py);
  return showAt(chart, s, all[nearest(all, wanted)], py);
}

function emphasise(chart, s, x, py) {
  let [best, distance] = [null, 24];
  for (const { group, index } of chart.visible()) {
    const y = valueAt(chart.curve(group, group.factor), x);
    const away = y === null ? Infinity : Math.abs(s.y(y) - py);
    if (away < distance) [best, distance] = [index, away];
  }
  if (best !== chart.focus) {
    chart.focus = best;
    chart.draw();
  }
}

function showAt(chart, s, x, py) {
  const close = (s.range.x1 - s.range.x0) / 50;
  const rows = [];
  for (const { group, index } of chart.visible()) {
    const [xs, ys, ds] = chart.curve(group, group.factor);
    if (!xs.length) continue;
    const i = nearest(xs, x);
    if (Math.abs(xs[i] - x) <= close) rows.push({ group, index, x: xs[i], y: ys[i], d: ds[i] ?? null });
  }
  rows.sort((a, b) => b.y - a.y);
  chart.cursor = x;
  chart.marks.replaceChildren(
    shape("line", { class: "cursor", x1: s.x(x), x2: s.x(x), y1: MARGIN.top, y2: MARGIN.top + s.inner.h }),
    ...rows.filter((row) => inside(s, row.x, row.y)).map((row) =>
      shape("circle", { cx: s.x(row.x), cy: s.y(row.y), r: row.index === chart.focus ? 5 : 3.5, fill: row.group[theme()] })),
  );
  fillTip(chart, x, nearRows(s, rows, py), rows.length);
  placeTip(chart, s, s.x(x));
}

function nearRows(s, rows, py) {
  if (rows.length <= ROWS) return rows;
  const away = (row) => Math.abs(s.y(row.y) - (py ?? MARGIN.top + s.inner.h));
  return [...rows].sort((a, b) => away(a) - away(b)).slice(0, ROWS).sort((a, b) => b.y - a.y);
}

function valueText(y) {
  if (Math.abs(y) >= 1) return y.toFixed(2);
  return Math.abs(y) < 1e-3 ? tidy(y, 3) : y.toPrecision(3);
}

const deviationText = (d) => (d === null ? "" : `± ${d < 0.01 ? tidy(d, 1) : d.toFixed(2)}`);

function fillTip(chart, x, rows, count) {
  const lines = rows.map(({ group, index, y, d }) => element("tr", { class: index === chart.focus ? "best" : null },
    element("td", {}, swatch(group)), element("td", { text: group.label }),
    element("td", { class: "number", text: valueText(y) }),
    element("td", { class: "number", text: deviationText(d) })));
  const more = count > rows.length ? [element("p", { class: "lead", text: `and ${count - rows.length} more` })] : [];
  const where = chart.state.unit === "time" ? `${tidy(x, 4)} ${chart.clock[0]}` : `${chart.state.unit} ${tidy(x, 7)}`;
  chart.tip.replaceChildren(
    element("b", { text: where }), element("table", {}, element("tbody", {}, ...lines)), ...more);
  chart.tip.hidden = false;
}

// At the top, which converged curves leave free.
function placeTip(chart, s, x) {
  const ratio = chart.stage.clientWidth / s.width;
  const room = chart.stage.clientWidth - chart.tip.offsetWidth - 4;
  const left = x * ratio + 14 > room ? x * ratio - chart.tip.offsetWidth - 14 : x * ratio + 14;
  chart.tip.style.left = `${Math.max(0, Math.min(room, left))}px`;
  chart.tip.style.top = `${MARGIN.top * ratio}px`;
}
