"use strict";

// Pointer, touch and keyboard: what moves the view of a chart, and what reads its values.

const KEYS = "Keys: ← → one evaluation, Home and End the first and last, shift and an arrow pan, + − zoom, Esc all of it.";
const STEP = 0.6; // of the view that is left by one step closer
const PAN = 0.2; // of the view, a key press

// The view whose corners are now at these pixels, kept to where there is something to see.
function viewOf(chart, s, left, right, top, bottom) {
  const full = chart.fullRange();
  const width = Math.min(full.x1, s.toX(right) - s.toX(left));
  const x0 = Math.min(full.x1 - width, Math.max(0, s.toX(left)));
  return { x0, x1: x0 + width, y0: s.toY(bottom), y1: s.toY(top) };
}

// Factor below 1 comes closer; the point (cx, cy) in pixels stays where it is.
function zoomAt(chart, factor, cx, cy) {
  const s = chart.scales();
  const [left, right] = [s.left, s.left + s.inner.w].map((p) => cx + (p - cx) * factor);
  const [top, bottom] = [MARGIN.top, MARGIN.top + s.inner.h].map((p) => cy + (p - cy) * factor);
  const view = viewOf(chart, s, left, right, top, bottom);
  const full = chart.fullRange();
  if (view.x1 - view.x0 < full.x1 * 1e-6) return;
  chart.zoom(factor > 1 && view.x1 - view.x0 >= full.x1 * 0.999 ? null : view);
}

// Closer or farther without a pointer: about the evaluation that is shown, else the middle; and about
// the height of a curve there, so that one stays in view however often it is asked for.
function zoomBy(chart, factor) {
  const s = chart.scales();
  const middle = (s.range.x0 + s.range.x1) / 2;
  const x = chart.cursor !== null && chart.cursor >= s.range.x0 && chart.cursor <= s.range.x1 ? chart.cursor : middle;
  const heights = [];
  for (const { group } of chart.visible()) {
    const y = valueAt(chart.curve(group, group.factor), x);
    if (y !== null && inside(s, x, y)) heights.push(s.y(y));
  }
  heights.sort((a, b) => a - b);
  const cy = heights.length ? heights[(heights.length - 1) >> 1] : MARGIN.top + s.inner.h / 2;
  zoomAt(chart, factor, s.x(x), cy);
}

// Move the view by shares of its width and height.
function pan(chart, dx, dy) {
  const s = chart.scales();
  const [x, y] = [dx * s.inner.w, dy * s.inner.h];
  chart.zoom(viewOf(chart, s, s.left + x, s.left + s.inner.w + x, MARGIN.top + y, MARGIN.top + s.inner.h + y));
}

function listen(chart) {
  const { svg } = chart;
  const at = (event) => {
    const box = svg.getBoundingClientRect();
    const scale = chart.size().width / box.width;
    return [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
  };
  listenToMouse(chart, at);
  listenToFingers(chart, at);
  svg.addEventListener("dblclick", () => chart.zoom(null));
  svg.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoomAt(chart, event.deltaY < 0 ? 0.8 : 1.25, ...at(event));
  }, { passive: false });
  svg.addEventListener("keydown", (event) => press(chart, event));
}

const isFinger = (event) => event.pointerType === "touch";

function listenToMouse(chart, at) {
  const { svg } = chart;
  let start = null;
  svg.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || isFinger(event)) return;
    start = at(event);
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointermove", (event) => {
    if (isFinger(event)) return;
    if (start) drawSelection(chart, start, at(event));
    else showTip(chart, ...at(event));
  });
  svg.addEventListener("pointerup", (event) => {
    if (start) select(chart, start, at(event));
    start = null;
  });
  svg.addEventListener("pointercancel", () => { start = null; hideTip(chart); });
  svg.addEventListener("pointerleave", (event) => {
    if (!start && !isFinger(event)) point(chart, null);
  });
}

// One finger reads values; in a zoomed chart it moves the view. Two fingers move and stretch it.
function listenToFingers(chart, at) {
  const { svg } = chart;
  const fingers = new Map();
  const down = (event) => {
    fingers.set(event.pointerId, at(event));
    svg.setPointerCapture(event.pointerId);
    if (fingers.size === 1) showTip(chart, ...at(event));
  };
  const move = (event) => {
    const before = [...fingers.values()];
    fingers.set(event.pointerId, at(event));
    const now = [...fingers.values()];
    if (now.length > 1) follow(chart, before, now);
    else if (chart.view) follow(chart, before, now);
    else showTip(chart, ...now[0]);
  };
  svg.addEventListener("pointerdown", (event) => { if (isFinger(event)) down(event); });
  svg.addEventListener("pointermove", (event) => { if (fingers.has(event.pointerId)) move(event); });
  for (const end of ["pointerup", "pointercancel"]) {
    svg.addEventListener(end, (event) => fingers.delete(event.pointerId));
  }
  // Else the browser takes two fingers for its own scrolling.
  svg.addEventListener("touchmove", (event) => {
    if (event.cancelable && (event.touches.length > 1 || chart.view)) event.preventDefault();
  }, { passive: false });
}

// The view in which what was under the fingers still is.
function follow(chart, before, now) {
  const s = chart.scales();
  const middle = (points, k) => points.reduce((sum, p) => sum + p[k], 0) / points.length;
  const apart = (points) => (points.length > 1 ? Math.hypot(points[0][0] - points[1][0], points[0][1] - points[1][1]) : 1);
  const factor = Math.min(4, Math.max(0.25, apart(before) / Math.max(1, apart(now))));
  const back = (p, k) => middle(before, k) + (p - middle(now, k)) * factor;
  const [left, right] = [back(s.left, 0), back(s.left + s.inner.w, 0)];
  const [top, bottom] = [back(MARGIN.top, 1), back(MARGIN.top + s.inner.h, 1)];
  chart.zoom(viewOf(chart, s, left, right, top, bottom));
}

function press(chart, event) {
  const arrow = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  if (arrow && event.shiftKey) pan(chart, arrow[0] * PAN, arrow[1] * PAN);
  else if (arrow && arrow[0]) stepTip(chart, arrow[0]);
  else if (event.key === "Home") stepTip(chart, -Infinity);
  else if (event.key === "End") stepTip(chart, Infinity);
  else if (event.key === "+" || event.key === "=") zoomBy(chart, STEP);
  else if (event.key === "-") zoomBy(chart, 1 / STEP);
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
  if (x1 - x0 < BAR || y1 - y0 < BAR) return hideTip(chart);
  const s = chart.scales();
  return chart.zoom({ x0: s.toX(x0), x1: s.toX(x1), y0: s.toY(y1), y1: s.toY(y0) });
}
