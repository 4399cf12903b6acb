"use strict";

// What the reader can do with a chart: the controls above it, the legend beside it, the pointer,
// the keyboard.

function choice(label, options, chosen, change) {
  const select = element("select", { onchange: (event) => change(event.target.value) });
  for (const [value, text] of options) {
    select.append(element("option", { value, text, selected: value === chosen ? "" : null }));
  }
  return element("label", {}, element("span", { text: label }), select);
}

function tick(label, checked, change) {
  const box = element("input", { type: "checkbox", onchange: (event) => change(event.target.checked) });
  box.checked = checked;
  return element("label", { class: "tick" }, box, element("span", { text: label }));
}

function buildControls(chart) {
  const { section, state, show } = chart;
  // A view zoomed in one quantity says nothing in another.
  const set = (key, cast = (v) => v) => (value) => {
    state[key] = cast(value);
    chart.zoom(null);
  };
  const redraw = (key) => (value) => {
    show[key] = value;
    chart.draw();
  };
  const metrics = section.metrics.map((metric) => [metric.key, metric.label]);
  const bar = element("div", { class: "controls" });
  if (metrics.length > 1) bar.append(choice("show", metrics, state.metric, set("metric")));
  if (section.units.length > 1) {
    bar.append(choice("against", section.units.map((u) => [u, u]), state.unit, set("unit")));
  }
  bar.append(
    choice("range", [["near", "converged part"], ["whole", "whole range"]], "near", set("whole", (v) => v === "whole")),
    choice("scale", [["linear", "linear"], ["log", "log"]], "linear", set("log", (v) => v === "log")),
  );
  if (section.groups.some((group) => group.runs.length > 1)) {
    bar.append(tick("± deviation", true, redraw("bands")), tick("single runs", false, redraw("runs")));
  }
  if (show.paper) bar.append(tick("paper’s values ▸", true, redraw("paper")));
  return bar;
}

function buildZoom(chart) {
  chart.resetButton = element("button", { class: "reset", text: "reset zoom", onclick: () => chart.zoom(null) });
  return element("div", { class: "zoom" },
    element("button", { text: "+", "aria-label": "zoom in", onclick: () => chart.zoomBy(0.6) }),
    element("button", { text: "−", "aria-label": "zoom out", onclick: () => chart.zoomBy(1 / 0.6) }),
    chart.resetButton);
}

function swatch(group) {
  const svg = shape("svg", { class: "swatch", viewBox: "0 0 34 10", width: 34, height: 10, "aria-hidden": "true" });
  svg.append(shape("line", {
    x1: 1, x2: 33, y1: 5, y2: 5, stroke: group[theme()], "stroke-width": 2.6,
    "stroke-dasharray": group.dashes.map((d) => d * 1.6).join(" ") || "none",
  }));
  return svg;
}

function buildLegend(chart) {
  const { section, on } = chart;
  const refresh = () => {
    buildLegend(chart);
    chart.draw();
  };
  const flip = (index, alone) => {
    if (alone) on.fill(false);
    on[index] = alone || !on[index];
    chart.focus = null;
    refresh();
    chart.legend.querySelector(`[data-group="${index}"]`).focus();
  };
  const point = (index) => () => {
    chart.focus = index !== null && on[index] ? index : null;
    chart.draw();
  };
  const all = element("span", { class: "all" },
    element("button", { text: "show all", onclick: () => { on.fill(true); refresh(); } }),
    element("button", { text: "hide all", onclick: () => { on.fill(false); refresh(); } }));
  const items = section.groups.map((group, index) => element("button", {
    class: "item", "data-group": index, "aria-pressed": String(on[index]),
    title: "click: show or hide; shift-click: only this one",
    onclick: (event) => flip(index, event.shiftKey),
    onpointerenter: point(index), onpointerleave: point(null),
  }, swatch(group), element("span", { class: "name", text: group.label }),
  element("span", { class: "value", text: group.value })));
  chart.legend.replaceChildren(...items, all);
}

function listen(chart) {
  const { svg } = chart;
  let start = null;
  const at = (event) => {
    const box = svg.getBoundingClientRect();
    const scale = chart.size().width / box.width;
    return [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
  };
  svg.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    // A finger reads values; zooming by touch goes through the buttons.
    if (event.pointerType === "touch") return showTip(chart, at(event)[0]);
    start = at(event);
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointermove", (event) => {
    if (start) drawSelection(chart, start, at(event));
    else showTip(chart, at(event)[0]);
  });
  svg.addEventListener("pointerup", (event) => {
    if (start) select(chart, start, at(event));
    start = null;
  });
  svg.addEventListener("pointercancel", () => { start = null; chart.hideTip(); });
  svg.addEventListener("pointerleave", (event) => {
    if (!start && event.pointerType !== "touch") chart.hideTip();
  });
  svg.addEventListener("dblclick", () => chart.zoom(null));
  svg.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    chart.zoomBy(event.deltaY < 0 ? 0.8 : 1.25, ...at(event));
  }, { passive: false });
  svg.addEventListener("keydown", (event) => press(chart, event));
}

function press(chart, event) {
  const s = chart.scales();
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (step) {
    const x = Math.min(s.range.x1, Math.max(s.range.x0, chart.cursor ?? s.range.x1));
    showTip(chart, s.x(x) + step * s.inner.w / 40);
  } else if (event.key === "+" || event.key === "=") chart.zoomBy(0.6);
  else if (event.key === "-") chart.zoomBy(1 / 0.6);
  else if (event.key === "Escape" || event.key === "0") chart.zoom(null);
  else return;
  event.preventDefault();
}

function corners(chart, a, b) {
  const { inner, left } = chart.scales();
  const inX = (x) => Math.min(left + inner.w, Math.max(left, x));
  const inY = (y) => Math.min(MARGIN.top + inner.h, Math.max(MARGIN.top, y));
  let [x0, x1] = [inX(Math.min(a[0], b[0])), inX(Math.max(a[0], b[0]))];
  let [y0, y1] = [inY(Math.min(a[1], b[1])), inY(Math.max(a[1], b[1]))];
  // A flat drag chooses a span of one axis and leaves the other.
  if (y1 - y0 < 2 * BAR && x1 - x0 >= BAR) [y0, y1] = [MARGIN.top, MARGIN.top + inner.h];
  else if (x1 - x0 < 2 * BAR && y1 - y0 >= BAR) [x0, x1] = [left, left + inner.w];
  return { x0, x1, y0, y1 };
}

function drawSelection(chart, a, b) {
  const { x0, x1, y0, y1 } = corners(chart, a, b);
  chart.tip.hidden = true;
  chart.marks.replaceChildren(shape("rect", { class: "selection", x: x0, y: y0, width: x1 - x0, height: y1 - y0 }));
}

function select(chart, a, b) {
  const { x0, x1, y0, y1 } = corners(chart, a, b);
  if (x1 - x0 < BAR || y1 - y0 < BAR) return chart.hideTip();
  const s = chart.scales();
  return chart.zoom({ x0: s.toX(x0), x1: s.toX(x1), y0: s.toY(y1), y1: s.toY(y0) });
}

// The values of all curves shown at the evaluation nearest to the pointer.
function showTip(chart, px) {
  const s = chart.scales();
  const wanted = Math.min(s.range.x1, Math.max(s.range.x0, s.toX(px)));
  const rows = [];
  for (const { group } of chart.visible()) {
    const [xs, ys, ds] = chart.curve(group, group.factor);
    if (!xs.length) continue;
    const i = nearest(xs, wanted);
    rows.push({ group, x: xs[i], y: ys[i], d: ds[i] });
  }
  if (!rows.length) return chart.hideTip();
  const distance = (row) => Math.abs(row.x - wanted);
  const x = rows.reduce((a, b) => (distance(b) < distance(a) ? b : a)).x;
  const close = rows.filter((row) => Math.abs(row.x - x) <= (s.range.x1 - s.range.x0) / 50);
  close.sort((a, b) => b.y - a.y);
  chart.cursor = x;
  chart.marks.replaceChildren(
    shape("line", { class: "cursor", x1: s.x(x), x2: s.x(x), y1: MARGIN.top, y2: MARGIN.top + s.inner.h }),
    ...close.filter((row) => row.y >= s.range.y0 && row.y <= s.range.y1).map((row) =>
      shape("circle", { cx: s.x(row.x), cy: s.y(row.y), r: 3.5, fill: row.group[theme()] })),
  );
  fillTip(chart, x, close);
  return placeTip(chart, s, s.x(x));
}

function fillTip(chart, x, rows) {
  const lines = rows.map(({ group, y, d }) => element("tr", {},
    element("td", {}, swatch(group)), element("td", { text: group.label }),
    element("td", { class: "number", text: y < 0.01 ? tidy(y, 3) : y.toFixed(y < 1 ? 3 : 2) }),
    element("td", { class: "number", text: d === null ? "" : `± ${d && d < 0.01 ? tidy(d, 1) : d.toFixed(2)}` })));
  chart.tip.replaceChildren(
    element("b", { text: `${chart.state.unit} ${tidy(x, 7)}` }),
    element("table", {}, element("tbody", {}, ...lines)));
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
