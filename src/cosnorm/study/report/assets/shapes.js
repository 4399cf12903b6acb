"use strict";

// Nodes, ticks and paths that the chart is made of. Text from the data goes through textContent only.

const SVG = "http://www.w3.org/2000/svg";
// The left margin is at least this wide; long numbers along the axis widen it (see leftMargin).
const MARGIN = { left: 54, right: 16, top: 14, bottom: 42 };
const BAR = 8; // a drag shorter than this, in pixels, is a click
const CROWD = 12; // of more curves than this, one is emphasised at a time

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

// Round numbers from low to high, whole ones where asked.
function niceTicks(low, high, count, whole = false) {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(whole ? Math.max(1, rough) : rough));
  const round = whole && power === 1 ? [1, 2, 5, 10] : [1, 2, 2.5, 5, 10];
  const step = round.map((m) => m * power).find((s) => s >= rough * 0.999);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) ticks.push(i * step);
  return ticks;
}

// 1, 2 and 5 times the powers of ten; the powers alone, or some of them, where that is too many.
function logTicks(low, high, most) {
  const powers = Math.log10(high / low);
  const pace = Math.max(1, Math.ceil(powers / most));
  const ticks = [];
  for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++) {
    for (const m of 3 * powers <= most ? [1, 2, 5] : e % pace ? [] : [1]) {
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
  const size = Math.abs(value);
  let text = size >= 10000 ? `${tidy(value / 1000)}k` : tidy(value);
  if (size > 0 && size < 1e-3) text = Number(value.toPrecision(5)).toExponential();
  return text.replaceAll("-", "−");
}

// Room for the title of the axis and for its longest number, at 7 pixels a character.
function leftMargin(ticks) {
  const longest = Math.max(0, ...ticks.map((tick) => axisText(tick).length));
  return Math.max(MARGIN.left, 30 + 7 * longest);
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

// The height of a curve at x, between its points; null beside them.
function valueAt([xs, ys], x) {
  if (!xs.length || x < xs[0] || x > xs[xs.length - 1]) return null;
  const i = xs.findIndex((other) => other >= x);
  if (i === 0 || xs[i] === x) return ys[i];
  const share = (x - xs[i - 1]) / (xs[i] - xs[i - 1]);
  return ys[i - 1] + share * (ys[i] - ys[i - 1]);
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

// Whether a point is within the axes, edges included.
function inside(s, x, y) {
  const { x0, x1, y0, y1 } = s.range;
  return x >= x0 && x <= x1 && y >= y0 && y <= y1;
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
