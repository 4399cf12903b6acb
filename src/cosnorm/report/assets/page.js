"use strict";

// The page around the charts: theme, filter, and the settings of a run when it is opened.

const DATA = JSON.parse(document.getElementById("data").textContent);
const THEMES = ["auto", "light", "dark"];
const darkMedia = matchMedia("(prefers-color-scheme: dark)");

// Storage may be forbidden to a page opened from a file; the theme then lasts as long as the page.
const memory = {
  get: () => { try { return localStorage.getItem("cosnorm-theme"); } catch { return null; } },
  set: (value) => { try { localStorage.setItem("cosnorm-theme", value); } catch { /* see above */ } },
};
let chosen = THEMES.includes(memory.get()) ? memory.get() : "auto";

function theme() {
  if (chosen === "auto") return darkMedia.matches ? "dark" : "light";
  return chosen;
}

function applyTheme() {
  document.documentElement.dataset.theme = theme();
  document.getElementById("theme").textContent = `theme: ${chosen}`;
  for (const chart of charts) {
    buildLegend(chart);
    chart.draw();
  }
}

const charts = [];
document.documentElement.dataset.theme = theme();
for (const section of DATA.sections) {
  const root = document.getElementById(`chart-${section.id}`);
  if (root && section.metrics.length) charts.push(new Chart(root, section));
}
applyTheme();
darkMedia.addEventListener("change", applyTheme);
document.getElementById("theme").addEventListener("click", () => {
  chosen = THEMES[(THEMES.indexOf(chosen) + 1) % THEMES.length];
  memory.set(chosen);
  applyTheme();
});

function settingsTable(title, values, differing) {
  const different = new Set(differing);
  const rows = Object.keys(values).sort().map((key) =>
    element("tr", { class: different.has(key) ? "differs" : null },
      element("th", { scope: "row", text: key }), element("td", { text: values[key] })));
  if (!rows.length) rows.push(element("tr", {}, element("td", { text: "nothing recorded" })));
  return element("div", {}, element("h4", { text: title }), element("table", { class: "pairs" }, element("tbody", {}, ...rows)));
}

function fillRun(details) {
  const run = DATA.runs[Number(details.dataset.run)];
  details.append(element("div", { class: "run-body" },
    element("p", { class: "path", text: run.path }),
    element("div", { class: "columns" },
      settingsTable("settings", run.config, DATA.differing.config[run.section]),
      settingsTable("environment", DATA.environments[run.environment], DATA.differing.environment))));
}

for (const details of document.querySelectorAll("details.run")) {
  details.addEventListener("toggle", () => {
    if (details.open && !details.querySelector(".run-body")) fillRun(details);
  });
}

const filter = document.getElementById("filter");
filter?.addEventListener("input", () => {
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const details of document.querySelectorAll("details.run")) {
    const text = details.querySelector("summary").textContent.toLowerCase();
    details.hidden = !words.every((word) => text.includes(word));
  }
});
