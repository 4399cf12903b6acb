"use strict";

// A line chart in SVG: curves with bands over seeds, and the part of them that is in view.

class Chart {
  constructor(root, section) {
    this.root = root;
    this.section = section;
    this.on = section.groups.map((group) => group.on);
    this.state = { metric: section.metrics[0].key, unit: section.unit, log: false, whole: false };
    this.show = { bands: true, runs: false, paper: section.groups.some((g) => g.paper !== null) };
    this.view = null; // the zoomed range, or null for the default
    this.focus = null; // the group that is pointed at, in the legend or among the curves
    this.cursor = null; // the evaluation whose values are shown
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
    this.hint = element("p", { class: "hint", text: KEYS });
    this.stage = element("div", { class: "stage" }, this.svg, this.tip, this.hint);
    this.note = element("p", { class: "note" });
    this.legend = element("div", { class: "legend", role: "group", "aria-label": "methods shown" });
    this.controls = element("div", { class: "controls" });
    const side = element("div", { class: "side" }, this.legend, buildZoom(this), buildSave(this));
    const plot = element("div", { class: "plot" }, this.stage, side);
    this.root.replaceChildren(this.controls, plot, this.note);
    buildControls(this);
    buildLegend(this);
    listen(this);
  }

  get metric() {
    return this.section.metrics.find((metric) => metric.key === this.state.metric);
  }

  get title() {
    const { label, layer } = this.metric;
    return layer === null ? label : `${label}, layer ${layer}`;
  }

  // Seconds of a time axis in the unit that suits the longest run.
  get clock() {
    const ends = this.section.groups.map((g) => g.curves[this.state.metric]?.[3].at(-1) ?? 0);
    const longest = Math.max(...ends);
    if (longest >= 3 * 3600) return ["hours", 3600];
    return longest >= 300 ? ["minutes", 60] : ["seconds", 1];
  }

  get axis() {
    return this.state.unit === "time" ? `time (${this.clock[0]})` : this.state.unit;
  }

  // [x, y, deviation] of a group or run, x in the unit chosen.
  curve(owner, factor) {
    const [x, y, deviation, seconds] = owner.curves[this.state.metric] ?? [[], [], [], []];
    if (this.state.unit === this.section.unit) return [x, y, deviation];
    if (this.state.unit !== "time") return [x.map((v) => v * factor), y, deviation];
    const size = this.clock[1];
    return [seconds.map((v) => v / size), y, deviation];
  }

  visible() {
    const groups = this.section.groups.map((group, index) => ({ group, index }));
    return groups.filter(({ index }) => this.on[index]);
  }

  // The groups whose published value is to be seen.
  papers() {
    if (!this.show.paper || this.state.metric !== "test_error") return [];
    return this.visible().map(({ group }) => group).filter((group) => group.paper !== null);
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
    for (const { paper } of this.papers()) [y0, y1] = [Math.min(y0, paper), Math.max(y1, paper)];
    if (y0 > y1) [y0, y1] = [0, 1];
    y1 = Math.max(y1, y0 + this.metric.least);
    const margin = 0.04 * (y1 - y0);
    // A little room below 0 keeps a line that lies on it whole.
    const floor = y0 < 0 ? -Infinity : -margin / 2;
    return { x0: 0, x1: x1 || 1, y0: Math.max(y0 - margin, floor), y1: y1 + margin, positive };
  }

  range() {
    const full = this.fullRange();
    const view = this.view ? { ...this.view } : { ...full };
    const near = this.metric.range;
    if (!this.view && !this.state.whole && near) [view.y0, view.y1] = near;
    if (!this.state.log) return view;
    // A logarithm needs a positive floor: the lowest positive value that there is. Room above and
    // below is a factor.
    view.y0 = Math.max(view.y0, Math.min(full.positive * 0.9, view.y1 / 10));
    if (!this.view) view.y1 *= 1.05;
    return view;
  }

  size() {
    const width = Math.max(280, this.stage.clientWidth);
    return { width, height: Math.round(Math.min(460, Math.max(300, width * 0.52))) };
  }

  scales() {
    const { width, height } = this.size();
    const range = this.range();
    const h = height - MARGIN.top - MARGIN.bottom;
    const yTicks = this.state.log ? logTicks(range.y0, range.y1, h / 30) : niceTicks(range.y0, range.y1, h / 55);
    const left = leftMargin(yTicks);
    const inner = { w: width - left - MARGIN.right, h };
    const lift = this.state.log ? (y) => Math.log10(Math.max(y, 1e-300)) : (y) => y;
    const drop = this.state.log ? (y) => 10 ** y : (y) => y;
    const [low, high] = [lift(range.y0), lift(range.y1)];
    return {
      width, height, inner, range, left, yTicks,
      x: (v) => left + ((v - range.x0) / (range.x1 - range.x0)) * inner.w,
      y: (v) => MARGIN.top + (1 - (lift(v) - low) / (high - low)) * inner.h,
      toX: (px) => range.x0 + ((px - left) / inner.w) * (range.x1 - range.x0),
      toY: (px) => drop(low + (1 - (px - MARGIN.top) / inner.h) * (high - low)),
    };
  }

  draw() {
    const s = this.scales();
    this.svg.setAttribute("viewBox", `0 0 ${s.width} ${s.height}`);
    this.svg.setAttribute("height", s.height);
    this.svg.setAttribute("aria-label", `${this.title} against ${this.axis}`);
    this.svg.classList.toggle("zoomed", this.view !== null);
    const clip = `clip-${this.section.id}`;
    const lines = shape("g", { "clip-path": `url(#${clip})` });
    const box = { x: s.left, y: MARGIN.top, width: s.inner.w, height: s.inner.h };
    const defs = shape("defs", {});
    const path = shape("clipPath", { id: clip });
    path.append(shape("rect", box));
    defs.append(path);
    this.marks = shape("g", { class: "marks" });
    this.points = shape("g", {});
    this.svg.replaceChildren(defs, this.axes(s), lines, this.points, this.marks);
    this.drawCurves(lines, s);
    this.drawNote(s);
    this.resetButton.disabled = this.view === null;
    hideTip(this);
  }

  axes(s) {
    const layer = shape("g", { class: "axes" });
    const { x0, x1 } = s.range;
    for (const tick of s.yTicks) {
      const y = s.y(tick);
      layer.append(
        shape("line", { class: "grid", x1: s.left, x2: s.width - MARGIN.right, y1: y, y2: y }),
        shape("text", { x: s.left - 8, y: y + 4, "text-anchor": "end" }, axisText(tick)),
      );
    }
    const bottom = MARGIN.top + s.inner.h;
    for (const tick of niceTicks(x0, x1, s.inner.w / 90, x1 - x0 >= 1)) {
      const x = s.x(tick);
      layer.append(
        shape("line", { class: "axis", x1: x, x2: x, y1: bottom, y2: bottom + 4 }),
        shape("text", { x, y: bottom + 18, "text-anchor": "middle" }, axisText(tick)),
      );
    }
    const middle = MARGIN.top + s.inner.h / 2;
    layer.append(
      shape("line", { class: "axis", x1: s.left, x2: s.width - MARGIN.right, y1: bottom, y2: bottom }),
      shape("text", { class: "title", x: s.left + s.inner.w / 2, y: s.height - 6, "text-anchor": "middle" }, this.axis),
      shape("text", { class: "title", x: 12, y: middle, "text-anchor": "middle", transform: `rotate(-90 12 ${middle})` }, this.title),
    );
    return layer;
  }

  drawCurves(layer, s) {
    const bands = shape("g", {});
    layer.append(bands); // below all lines
    const shown = this.visible();
    // What is pointed at lies above the others.
    shown.sort((a, b) => (a.index === this.focus) - (b.index === this.focus));
    const thick = shown.length > CROWD ? 1.4 : 2;
    for (const { group, index } of shown) {
      const colour = group[theme()];
      const opacity = this.focus === null || this.focus === index ? 1 : 0.2;
      const own = shape("g", { opacity, "data-owner": index });
      const curve = this.curve(group, group.factor);
      // Bands of many curves hide each other.
      const banded = shown.length <= CROWD || this.focus === index;
      if (this.show.bands && banded && curve[2].some((d) => d)) {
        const band = shape("g", { opacity });
        band.append(shape("path", { class: "band", d: bandPath(curve, s), fill: colour }));
        bands.append(band);
      }
      for (const run of this.show.runs ? group.runs : []) own.append(...this.drawRun(run, group, s));
      const line = {
        class: "curve", "data-group": index, d: linePath(curve, s, this.state.log), stroke: colour,
        "stroke-dasharray": group.dashes.map((d) => d * 1.6).join(" ") || "none",
        "stroke-width": this.focus === index ? 3.2 : thick,
      };
      own.append(shape("path", line));
      layer.append(own);
      this.points.append(this.drawPoints(group, curve, s, shape("g", { opacity })));
    }
  }

  drawRun(run, group, s) {
    const [colour, curve] = [group[theme()], this.curve(run, group.factor)];
    const line = shape("path", { class: "run", d: linePath(curve, s, this.state.log), stroke: colour });
    return run.ended && curve[0].length ? [line, endMark(s, curve, colour)] : [line];
  }

  // What is a mark and no line: whole at the very edge of the axes, absent outside them.
  drawPoints(group, curve, s, own) {
    const colour = group[theme()];
    if (this.papers().includes(group) && inside(s, s.range.x1, group.paper)) {
      own.append(paperMark(s, group.paper, colour));
    }
    const [x, y] = [curve[0].at(-1), curve[1].at(-1)];
    if (x === undefined || !inside(s, x, y)) return own;
    if (curve[0].length === 1) own.append(shape("circle", { class: "dot", cx: s.x(x), cy: s.y(y), r: 4, fill: colour }));
    if (group.ended) own.append(endMark(s, curve, colour));
    return own;
  }

  drawNote(s) {
    const near = !this.view && !this.state.whole;
    const off = near ? this.metric.off.filter((o) => this.on[o.group]) : [];
    const named = off.map((o) => `${this.section.groups[o.group].label} at ${tidy(o.level, 3)}`);
    const papers = near ? this.papers().filter((g) => !inside(s, s.range.x1, g.paper)) : [];
    const values = papers.map((g) => `${g.label} ${g.paper.toFixed(2)}`).join(", ");
    if (values) named.push(`the paper’s values (${values})`);
    const told = named.length ? [`Off scale: ${named.join(", ")}; choose “whole range”.`] : [];
    for (const { group } of this.visible()) {
      if (group.ended) told.push(`${group.label}: ${group.state}${this.curve(group, 1)[0].length ? " (×)" : ", before its first number"}.`);
    }
    this.note.textContent = told.join(" ");
  }

  zoom(view) {
    this.view = view;
    this.draw();
  }
}
