"use strict";

// The controls above a chart, and the legend beside it.

function choice(label, options, chosen, change) {
  const select = element("select", { "aria-label": label, onchange: (event) => change(event.target.value) });
  for (const [value, text] of options) {
    select.append(element("option", { value, text, selected: value === chosen ? "" : null }));
  }
  return element("label", { "data-choice": label }, element("span", { text: label }), select);
}

function tick(label, checked, change) {
  const box = element("input", { type: "checkbox", onchange: (event) => change(event.target.checked) });
  box.checked = checked;
  return element("label", { class: "tick" }, box, element("span", { text: label }));
}

// Metrics by name: those of layers are one choice, and the layer another.
function metricChoices(chart) {
  const { section, state } = chart;
  const { label, layer } = chart.metric;
  const names = [...new Set(section.metrics.map((metric) => metric.label))];
  const choose = (name, wanted) => {
    const all = section.metrics.filter((metric) => metric.label === name);
    state.metric = (all.find((metric) => metric.layer === wanted) ?? all[0]).key;
    // Rates of different methods lie orders of magnitude apart.
    state.log = state.metric.endsWith("effective_lr");
    chart.zoom(null);
    buildControls(chart);
  };
  const choices = names.length > 1 ? [choice("show", names.map((n) => [n, n]), label, (name) => choose(name, layer))] : [];
  if (layer !== null) {
    const layers = section.metrics.filter((metric) => metric.label === label).map((metric) => metric.layer);
    choices.push(choice("layer", layers.map((l) => [l, l]), layer, (wanted) => choose(label, wanted)));
  }
  return choices;
}

function buildControls(chart) {
  const { section, state, show } = chart;
  // A view zoomed in one quantity says nothing in another.
  const set = (key, cast = (v) => v) => (value) => {
    state[key] = cast(value);
    chart.cursor = null;
    chart.zoom(null);
  };
  const redraw = (key) => (value) => {
    show[key] = value;
    chart.draw();
  };
  const parts = metricChoices(chart);
  if (section.units.length > 1) parts.push(choice("against", section.units.map((u) => [u, u]), state.unit, set("unit")));
  if (chart.metric.range) {
    const ranges = [["near", "converged part"], ["whole", "whole range"]];
    parts.push(choice("range", ranges, state.whole ? "whole" : "near", set("whole", (v) => v === "whole")));
  }
  parts.push(choice("scale", [["linear", "linear"], ["log", "log"]], state.log ? "log" : "linear", set("log", (v) => v === "log")));
  if (section.groups.some((group) => group.runs.length > 1)) {
    parts.push(tick("± deviation", show.bands, redraw("bands")), tick("single runs", show.runs, redraw("runs")));
  }
  if (section.groups.some((g) => g.paper !== null) && state.metric === "test_error") {
    parts.push(tick("paper’s values ▸", show.paper, redraw("paper")));
  }
  chart.controls.replaceChildren(...parts);
}

function buildZoom(chart) {
  chart.resetButton = element("button", { class: "reset", text: "reset zoom", onclick: () => chart.zoom(null) });
  return element("div", { class: "zoom" },
    element("button", { text: "+", "aria-label": "zoom in", onclick: () => zoomBy(chart, STEP) }),
    element("button", { text: "−", "aria-label": "zoom out", onclick: () => zoomBy(chart, 1 / STEP) }),
    chart.resetButton);
}

function swatchLine(group) {
  return shape("line", {
    x1: 1, x2: 33, y1: 5, y2: 5, stroke: group[theme()], "stroke-width": 2.6,
    "stroke-dasharray": group.dashes.map((d) => d * 1.6).join(" ") || "none",
  });
}

function swatch(group) {
  const svg = shape("svg", { class: "swatch", viewBox: "0 0 34 10", width: 34, height: 10, "aria-hidden": "true" });
  svg.append(swatchLine(group));
  return svg;
}

function buildLegend(chart) {
  const { section, on } = chart;
  const refresh = () => {
    buildLegend(chart);
    chart.draw();
  };
  const fill = (value) => () => { on.fill(value); refresh(); };
  const item = (group, index) => legendItem(chart, group, index, refresh);
  const all = section.groups.map((group, index) => [group, index]);
  const [first, others] = [true, false].map((is) => all.filter(([group]) => group.first === is).map(([g, i]) => item(g, i)));
  const open = chart.legend.querySelector("details")?.open || all.some(([group, i]) => !group.first && on[i]);
  const more = others.length ? [element("details", { open: open ? "" : null },
    element("summary", { text: `${others.length} other settings` }), ...others)] : [];
  const note = others.length ? [element("p", { class: "lead", text: "Of each method, the setting that is compared below." })] : [];
  const both = element("span", { class: "all" },
    element("button", { text: "show all", onclick: fill(true) }), element("button", { text: "hide all", onclick: fill(false) }));
  chart.legend.replaceChildren(...note, ...first, ...more, ...(all.length > 1 ? [both] : []));
}

function legendItem(chart, group, index, refresh) {
  const { on } = chart;
  const flip = (alone) => {
    if (alone) on.fill(false);
    on[index] = alone || !on[index];
    chart.focus = null;
    refresh();
    chart.legend.querySelector(`[data-group="${index}"]`).focus();
  };
  const state = group.state ? [element("small", { class: /diverged|not trained/.test(group.state) ? "bad" : null, text: ` ${group.state}` })] : [];
  return element("button", {
    class: "item", "data-group": index, "aria-pressed": String(on[index]),
    title: "click: show or hide; shift-click: only this one",
    onclick: (event) => flip(event.shiftKey),
    onpointerenter: () => point(chart, index), onpointerleave: () => point(chart, null),
  }, swatch(group), element("span", { class: "name" }, element("span", { text: group.label }), ...state),
  element("span", { class: "value", text: group.value }));
}
