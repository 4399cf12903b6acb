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

// The folder, and in it what says most; without a link where the page lies nowhere.
function runLinks(run) {
  if (run.link === null) return [element("span", { text: run.path })];
  const files = ["config.json", "metrics.jsonl", "summary.json"];
  return [["", run.path], ...files.map((name) => [name, name])]
    .flatMap(([end, text]) => [element("a", { href: run.link + end, text }), " "]);
}

function fillRun(details) {
  const run = DATA.runs[Number(details.dataset.run)];
  details.append(element("div", { class: "run-body" },
    element("p", { class: "path" }, ...runLinks(run)),
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
  document.querySelector(".runs-head + .folded + .unfold")?.click(); // what is sought may be anywhere
  const rows = [...document.querySelectorAll("details.run")];
  for (const details of rows) {
    // Every word in some cell: cells lie side by side without a space.
    const texts = [...details.querySelector("summary").children].map((cell) => cell.textContent.toLowerCase());
    details.hidden = !words.every((word) => texts.some((text) => text.includes(word)));
  }
  const shown = rows.filter((details) => !details.hidden).length;
  document.getElementById("filtered").textContent = words.length ? `${shown} of ${rows.length} runs` : "";
});
