"use strict";

// The chart as it is seen, as a file of its own: SVG, or PNG drawn from it.

const STYLES = [
  "fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "opacity",
  "font-family", "font-size", "font-weight",
];
const LINE = 20; // pixels of a line of the legend

function buildSave(chart) {
  const button = (kind, save) => element("button", { text: `save ${kind}`, "data-save": kind, onclick: () => save(chart) });
  return element("div", { class: "zoom" }, button("PNG", savePng), button("SVG", saveSvg));
}

// The drawing with its styles in it, a background, a title and a legend: it needs no page.
function standalone(chart) {
  hideTip(chart);
  const copy = chart.svg.cloneNode(true);
  const [originals, copies] = [chart.svg, copy].map((svg) => [svg, ...svg.querySelectorAll("*")]);
  originals.forEach((original, i) => withStyles(copies[i], getComputedStyle(original)));
  const { width, height } = chart.size();
  const page = getComputedStyle(document.documentElement);
  const [card, ink] = ["--card", "--ink"].map((name) => page.getPropertyValue(name).trim());
  const [legend, lines] = legendShapes(chart, width, ink);
  const whole = height + LINE * (lines + 2);
  for (const name of ["tabindex", "role", "class"]) copy.removeAttribute(name);
  for (const [name, value] of Object.entries({ xmlns: SVG, x: 0, y: LINE * 1.5, width, height })) copy.setAttribute(name, value);
  const svg = shape("svg", { xmlns: SVG, viewBox: `0 0 ${width} ${whole}`, width, height: whole });
  const title = shape("text", { x: 12, y: LINE, fill: ink, "font-family": "sans-serif", "font-size": 15, "font-weight": 600 },
    `${chart.section.label}: ${chart.title}`);
  legend.setAttribute("transform", `translate(0 ${height + LINE * 2})`);
  svg.append(shape("rect", { width, height: whole, fill: card }), title, copy, legend);
  return { text: new XMLSerializer().serializeToString(svg), width, height: whole };
}

function withStyles(node, style) {
  for (const name of STYLES) {
    const value = style.getPropertyValue(name);
    if (value) node.setAttribute(name, value);
  }
}

// The groups shown, in as many columns as there is room for.
function legendShapes(chart, width, ink) {
  const shown = chart.visible().map(({ group }) => [group, [group.label, group.value, group.state].filter(Boolean).join("  ")]);
  const longest = Math.max(10, ...shown.map(([, text]) => text.length));
  const columns = Math.max(1, Math.floor((width - 12) / (60 + 7 * longest)));
  const legend = shape("g", {});
  shown.forEach(([group, text], i) => {
    const [x, y] = [12 + (i % columns) * ((width - 12) / columns), Math.floor(i / columns) * LINE];
    const mark = shape("g", { transform: `translate(${x} ${y - 9})` });
    mark.append(swatchLine(group));
    legend.append(mark, shape("text", { x: x + 42, y, fill: ink, "font-family": "sans-serif", "font-size": 12.5 }, text));
  });
  return [legend, Math.ceil(shown.length / columns)];
}

function fileName(chart, end) {
  const name = `${chart.section.label} ${chart.title}`.toLowerCase();
  return `${name.replace(/[^a-z0-9.]+/g, "-").replace(/^-+|-+$/g, "").slice(0, 80)}.${end}`;
}

function download(name, blob) {
  const url = URL.createObjectURL(blob);
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

function saveSvg(chart) {
  const { text } = standalone(chart);
  download(fileName(chart, "svg"), new Blob([text], { type: "image/svg+xml" }));
}

// Twice the size on the screen, for print.
function savePng(chart) {
  const { text, width, height } = standalone(chart);
  const image = new Image();
  image.onload = () => {
    const canvas = element("canvas", { width: 2 * width, height: 2 * height });
    const context = canvas.getContext("2d");
    context.scale(2, 2);
    context.drawImage(image, 0, 0, width, height);
    canvas.toBlob((blob) => download(fileName(chart, "png"), blob), "image/png");
  };
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
}
