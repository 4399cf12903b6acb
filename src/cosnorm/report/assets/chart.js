"use strict";

// A line chart in SVG: curves with bands over seeds, hover, zoom, switches. Text from the data goes
// through textContent only.

const SVG = "http://www.w3.org/2000/svg";
const MARGIN = { left: 54, right: 16, top: 14, bottom: 42 };
const BAR = 8; // a drag shorter than this, in pixels, is a click

function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "text") node.textContent = value;
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== null && value !== false) node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

function shape(tag, attributes, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function niceTicks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) ticks.push(i * step);
  return ticks;
}

function logTicks(low, high) {
  const ticks = [];
  for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++) {
    for (const m of [1, 2, 5]) {
      const tick = m * 10 ** e;
      if (tick >= low && tick <= high) ticks.push(tick);
    }
  }
  return ticks.length >= 2 ? ticks : niceTicks(low, high, 5).filter((tick) => tick > 0);
}

function tidy(value, digits = 5) {
  return String(Number(value.toPrecision(digits)));
}

function axisText(value) {
  const text = Math.abs(value) >= 10000 ? `${tidy(value / 1000)}k` : tidy(value);
  return text.replace("-", "−");
}

// The index of the entry of a sorted list that lies nearest to the value.
function nearest(sorted, value) {
  let low = 0;
  let high = sorted.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle;
    else high = middle;
  }
  return value - sorted[low] <= sorted[high] - value ? low : high;
}

class Chart {
  constructor(root, section) {
    this.root = root;
    this.section = section;
    this.on = section.groups.map((group) => group.on);
    this.state = { metric: section.metrics[0].key, unit: section.unit, log: false, whole: false };
    this.show = { bands: true, runs: false, paper: section.groups.some((g) => g.paper !== null) };
    this.view = null; // the zoomed range, or null for the default
    this.focus = null; // the group under the pointer in the legend
    this.build();
    // Drawing sets the height: only a new width asks for another drawing.
    let width = 0;
    new ResizeObserver(() => {
      if (this.stage.clientWidth !== width) this.draw();
      width = this.stage.clientWidth;
    }).observe(this.stage);
  }

  build() {
    this.svg = shape("svg", { tabindex: "0", role: "img" });
    this.tip = element("div", { class: "tip", role: "status", hidden: "" });
    this.stage = element("div", { class: "stage" }, this.svg, this.tip);
    this.note = element("p", { class: "note" });
    this.legend = element("div", { class: "legend", role: "group", "aria-label": "methods shown" });
    const side = element("div", { class: "side" }, this.legend, buildZoom(this));
    const plot = element("div", { class: "plot" }, this.stage, side);
    this.root.replaceChildren(buildControls(this), plot, this.note);
    buildLegend(this);
    listen(this);
  }

  get metric() {
    return this.section.metrics.find((metric) => metric.key === this.state.metric);
  }

  // [x, y, deviation] of a group or run, x in the unit chosen.
  curve(owner, factor) {
    const curve = owner.curves[this.state.metric];
    if (!curve) return [[], [], []];
    if (this.state.unit === this.section.unit) return curve;
    return [curve[0].map((x) => x * factor), curve[1], curve[2]];
  }

  visible() {
    const groups = this.section.groups.map((group, index) => ({ group, index }));
    return groups.filter(({ index }) => this.on[index]);
  }

  fullRange() {
    let [x1, y0, y1, positive] = [0, Infinity, -Infinity, Infinity];
    for (const group of this.section.groups) {
      const [xs, ys] = this.curve(group, group.factor);
      x1 = Math.max(x1, xs.length ? xs[xs.length - 1] : 0);
      for (const y of ys) {
        y0 = Math.min(y0, y);
        y1 = Math.max(y1, y);
        if (y > 0) positive = Math.min(positive, y);
      }
    }
    if (y0 > y1) [y0, y1] = [0, 1];
    const margin = 0.04 * (y1 - y0 || 1);
    return { x0: 0, x1: x1 || 1, y0: Math.max(y0 - margin, Math.min(0, y0)), y1: y1 + margin, positive };
  }

  range() {
    const full = this.fullRange();
    const view = this.view ?? { ...full };
    if (!this.view && !this.state.whole) [view.y0, view.y1] = this.metric.range;
    // A logarithm needs a positive floor: the lowest positive value that there is.
    if (this.state.log) view.y0 = Math.max(view.y0, Math.min(full.positive * 0.9, view.y1 / 10));
    return view;
  }

  size() {
    const width = Math.max(280, this.stage.clientWidth);
    return { width, height: Math.round(Math.min(460, Math.max(300, width * 0.52))) };
  }

  scales() {
    const { width, height } = this.size();
    const range = this.range();
    const inner = { w: width - MARGIN.left - MARGIN.right, h: height - MARGIN.top - MARGIN.bottom };
    const lift = this.state.log ? (y) => Math.log10(Math.max(y, 1e-300)) : (y) => y;
    const drop = this.state.log ? (y) => 10 ** y : (y) => y;
    const [low, high] = [lift(range.y0), lift(range.y1)];
    return {
      width, height, inner, range,
      x: (v) => MARGIN.left + ((v - range.x0) / (range.x1 - range.x0)) * inner.w,
      y: (v) => MARGIN.top + (1 - (lift(v) - low) / (high - low)) * inner.h,
      toX: (px) => range.x0 + ((px - MARGIN.left) / inner.w) * (range.x1 - range.x0),
      toY: (px) => drop(low + (1 - (px - MARGIN.top) / inner.h) * (high - low)),
    };
  }

  draw() {
    const s = this.scales();
    this.svg.setAttribute("viewBox", `0 0 ${s.width} ${s.height}`);
    this.svg.setAttribute("height", s.height);
    this.svg.setAttribute("aria-label", `${this.metric.label} against ${this.state.unit}`);
    const clip = `clip-${this.section.id}`;
    const inside = shape("g", { "clip-path": `url(#${clip})` });
    const box = { x: MARGIN.left, y: MARGIN.top, width: s.inner.w, height: s.inner.h };
    const defs = shape("defs", {});
    const path = shape("clipPath", { id: clip });
    path.append(shape("rect", box));
    defs.append(path);
    this.marks = shape("g", { class: "marks" });
    this.svg.replaceChildren(defs, this.axes(s), inside, this.marks);
    this.drawCurves(inside, s);
    this.drawNote();
    this.resetButton.disabled = this.view === null;
    this.hideTip();
  }

  axes(s) {
    const layer = shape("g", { class: "axes" });
    const { x0, x1, y0, y1 } = s.range;
    const ys = this.state.log ? logTicks(y0, y1) : niceTicks(y0, y1, s.inner.h / 55);
    for (const tick of ys) {
      const y = s.y(tick);
      layer.append(
        shape("line", { class: "grid", x1: MARGIN.left, x2: s.width - MARGIN.right, y1: y, y2: y }),
        shape("text", { x: MARGIN.left - 8, y: y + 4, "text-anchor": "end" }, axisText(tick)),
      );
    }
    const bottom = MARGIN.top + s.inner.h;
    for (const tick of niceTicks(x0, x1, s.inner.w / 90)) {
      const x = s.x(tick);
      layer.append(
        shape("line", { class: "axis", x1: x, x2: x, y1: bottom, y2: bottom + 4 }),
        shape("text", { x, y: bottom + 18, "text-anchor": "middle" }, axisText(tick)),
      );
    }
    const middle = MARGIN.top + s.inner.h / 2;
    layer.append(
      shape("line", { class: "axis", x1: MARGIN.left, x2: s.width - MARGIN.right, y1: bottom, y2: bottom }),
      shape("text", { class: "title", x: MARGIN.left + s.inner.w / 2, y: s.height - 6, "text-anchor": "middle" }, this.state.unit),
      shape("text", { class: "title", x: 12, y: middle, "text-anchor": "middle", transform: `rotate(-90 12 ${middle})` }, this.metric.label),
    );
    return layer;
  }

  drawCurves(layer, s) {
    for (const { group, index } of this.visible()) {
      const colour = group[theme()];
      const faded = this.focus !== null && this.focus !== index;
      const own = shape("g", { opacity: faded ? 0.2 : 1 });
      const curve = this.curve(group, group.factor);
      if (this.show.bands && curve[2].some((d) => d)) {
        own.append(shape("path", { class: "band", d: bandPath(curve, s), fill: colour }));
      }
      for (const run of this.show.runs ? group.runs : []) {
        const path = linePath(this.curve(run, group.factor), s, this.state.log);
        own.append(shape("path", { class: "run", d: path, stroke: colour }));
      }
      if (group.paper !== null && this.show.paper && this.state.metric === "test_error") {
        own.append(paperMark(s, group.paper, colour));
      }
      const line = {
        class: "curve", "data-group": index, d: linePath(curve, s, this.state.log), stroke: colour,
        "stroke-dasharray": group.dashes.map((d) => d * 1.6).join(" ") || "none",
        "stroke-width": this.focus === index ? 3.2 : 2,
      };
      own.append(shape("path", line));
      if (curve[0].length === 1) {
        own.append(shape("circle", { cx: s.x(curve[0][0]), cy: s.y(curve[1][0]), r: 4, fill: colour }));
      }
      if (group.ended && curve[0].length) own.append(endMark(s, curve, colour));
      layer.append(own);
    }
  }

  drawNote() {
    const off = this.view || this.state.whole ? [] : this.metric.off.filter((o) => this.on[o.group]);
    const named = off.map((o) => `${this.section.groups[o.group].label} at ${tidy(o.level, 3)}`);
    this.note.textContent = named.length ? `Off scale: ${named.join(", ")}; choose “whole range”.` : "";
  }

  hideTip() {
    this.tip.hidden = true;
    this.marks.replaceChildren();
  }

  zoom(view) {
    this.view = view;
    this.draw();
  }

  // Factor below 1 comes closer; the point (x, y) in pixels stays where it is.
  zoomBy(factor, px, py) {
    const s = this.scales();
    const [cx, cy] = [px ?? MARGIN.left + s.inner.w / 2, py ?? MARGIN.top + s.inner.h / 2];
    const [left, right] = [MARGIN.left, MARGIN.left + s.inner.w].map((p) => s.toX(cx + (p - cx) * factor));
    const [top, bottom] = [MARGIN.top, MARGIN.top + s.inner.h].map((p) => s.toY(cy + (p - cy) * factor));
    const full = this.fullRange();
    this.zoom({ x0: Math.max(0, left), x1: Math.min(full.x1, right), y0: bottom, y1: top });
  }
}

function linePath([xs, ys], s, log) {
  let path = "";
  let pen = "M";
  for (let i = 0; i < xs.length; i++) {
    if (log && ys[i] <= 0) {
      pen = "M";
      continue;
    }
    path += `${pen}${s.x(xs[i]).toFixed(1)} ${s.y(ys[i]).toFixed(1)}`;
    pen = "L";
  }
  return path;
}

function bandPath([xs, ys, ds], s) {
  const at = (i, sign) => {
    const value = Math.max(ys[i] + sign * (ds[i] ?? 0), ys[i] > 0 ? ys[i] * 1e-3 : -Infinity);
    return `${s.x(xs[i]).toFixed(1)} ${s.y(value).toFixed(1)}`;
  };
  const up = xs.map((_, i) => at(i, 1));
  const down = xs.map((_, i) => at(i, -1)).reverse();
  return `M${[...up, ...down].join("L")}Z`;
}

// Where a diverged curve breaks off: a cross.
function endMark(s, [xs, ys], colour) {
  const [x, y] = [s.x(xs[xs.length - 1]), s.y(ys[ys.length - 1])];
  return shape("path", { class: "end", d: `M${x - 5} ${y - 5}l10 10m0 -10l-10 10`, stroke: colour });
}

// The paper's value: a mark at the right edge.
function paperMark(s, value, colour) {
  const [x, y] = [s.width - MARGIN.right, s.y(value)];
  const mark = shape("path", { class: "paper", d: `M${x} ${y}l-9 -5v10Z`, fill: colour });
  mark.append(shape("title", {}, `paper: ${value}`));
  return mark;
}
