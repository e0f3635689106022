"use strict";
// The report's tables, and what tables and plots share. Texts of the runs reach the page through
// textContent (here) and `plain` (Plotly's own small markup) only.

const report = JSON.parse(document.getElementById("data").textContent);
const dark = window.matchMedia("(prefers-color-scheme: dark)");

function byId(id) {
  return document.getElementById(id);
}

/** A DOM element; children that are no nodes become text. */
function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return node;
}

/** Fills a select with [value, text] pairs. */
function options(select, pairs) {
  select.replaceChildren(...pairs.map(([value, text]) => make("option", { value }, text)));
}

/** Decimals that show numbers of this size to four digits. */
function decimals(numbers) {
  if (numbers.every((x) => !Number.isFinite(x) || Number.isInteger(x))) return 0;
  const largest = extent(numbers.map((x) => (Number.isFinite(x) ? Math.abs(x) : null)))[1];
  return largest === 0 ? 0 : Math.min(8, Math.max(0, 3 - Math.floor(Math.log10(largest))));
}

function shown(value, places) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  return places === undefined ? String(value) : value.toFixed(places).replace(/^-/, "−");
}

/** [smallest, largest] of many numbers; nulls are left out. */
function extent(numbers) {
  const there = numbers.filter(Number.isFinite);
  return there.reduce(([low, high], x) => [Math.min(low, x), Math.max(high, x)], [Infinity, -Infinity]);
}

/** Text as Plotly shows it unchanged. */
function plain(text) {
  return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

/** Whether a text has all of these words, or parts of words. */
function having(words) {
  const all = words.toLowerCase().split(/\s+/).filter(Boolean);
  return (text) => all.every((word) => text.toLowerCase().includes(word));
}

/** Ascending; numbers before texts, nothing last in either direction. */
function compare(one, other, direction) {
  const none = (x) => x === null || x === undefined;
  if (none(one) || none(other)) return none(one) - none(other);
  if (typeof one === "number" && typeof other === "number") return direction * (one - other);
  if (typeof one === "number") return -direction;
  if (typeof other === "number") return direction;
  return direction * String(one).localeCompare(String(other), "en", { numeric: true });
}

/**
 * A table that sorts by its headers and, with `filter`, hides rows that lack a word. A column is
 * {name, title?, kind?}; a cell a value, or {value, text?, links?}: sorted by value.
 */
function table(place, { caption, columns, rows, filter = true }) {
  const cells = rows.map((row) =>
    row.map((cell) => (cell !== null && typeof cell === "object" ? cell : { value: cell })),
  );
  const places = columns.map((_, k) => decimals(cells.map((row) => row[k].value)));
  const kinds = columns.map(
    (column, k) => column.kind || (cells.some((row) => typeof row[k].value === "number") ? "number" : ""),
  );
  const lines = cells.map((row) => {
    const line = make("tr");
    row.forEach((cell, k) => {
      const text = cell.text === undefined ? shown(cell.value, places[k]) : cell.text;
      const td = make("td", { class: kinds[k] }, cell.links ? "" : text);
      for (const [name, address] of cell.links || []) td.append(make("a", { href: address }, name));
      line.append(td);
    });
    return line;
  });
  const original = cells.map((row, k) => ({ row, line: lines[k], k }));
  const body = make("tbody");
  const count = make("span", { role: "status" });
  const headers = columns.map((column, k) => {
    const name = make("button", { type: "button", title: column.title || column.name }, column.name);
    const th = make("th", { scope: "col", class: kinds[k], "aria-sort": "none" }, name);
    name.addEventListener("click", () => {
      const descending = th.getAttribute("aria-sort") === "ascending";
      headers.forEach((other) => other.setAttribute("aria-sort", "none"));
      th.setAttribute("aria-sort", descending ? "descending" : "ascending");
      const direction = descending ? -1 : 1;
      original.sort((a, b) => compare(a.row[k].value, b.row[k].value, direction) || a.k - b.k);
      body.append(...original.map((one) => one.line));
    });
    return th;
  });
  function hide() {
    const wanted = having(search.value);
    let left = 0;
    for (const line of lines) {
      line.hidden = !wanted([...line.cells].map((cell) => cell.textContent).join(" "));
      left += !line.hidden;
    }
    count.textContent = `${left} of ${lines.length} rows`;
  }
  const search = make("input", { type: "search", oninput: hide, autocomplete: "off" });
  body.append(...lines);
  const parts = [];
  if (filter) parts.push(make("div", { class: "controls" }, make("label", {}, "Filter ", search), count));
  const whole = make("table", {}, make("caption", {}, caption), make("thead", {}, make("tr", {}, ...headers)), body);
  const scroll = { class: "scroll", tabindex: "0", role: "region", "aria-label": caption };
  place.replaceChildren(...parts, make("div", scroll, whole));
  if (filter) hide();
}

/** The table of conditions, with the statistics of the chosen metric. */
function conditionTable() {
  const metric = byId("results-metric").value;
  const found = report.statistics[metric];
  const places = decimals(found.flatMap((one) => [one.mean, one.low, one.high]));
  const interval = (low, high) =>
    low === null ? null : { value: low, text: `[${shown(low, places)}, ${shown(high, places)}]` };
  const p = (value) => (value === null ? null : { value, text: value.toFixed(4) });
  const mean = (value) => (value === null ? null : { value, text: shown(value, places) });
  const rows = found.map((one, c) => [
    ...report.conditions[c].values,
    { value: one.n, text: `${one.n} of ${report.conditions[c].runs.length}` },
    mean(one.mean),
    interval(one.low, one.high),
    c === 0 ? { value: null, text: "baseline" } : mean(one.difference),
    interval(one.difference_low, one.difference_high),
    one.pairs,
    p(one.p),
    p(one.smallest_p),
    p(one.p_holm),
  ]);
  const columns = [
    ...report.factors.map((factor) => ({ name: factor.short, title: factor.name })),
    { name: "n", title: "seeds with a result, of the runs of this condition, done or not" },
    { name: "mean", title: "over seeds" },
    { name: "95 % interval", kind: "number" },
    { name: "difference", title: "to the baseline, over pairs of one seed", kind: "number" },
    { name: "its 95 % interval", kind: "number" },
    { name: "pairs", title: "seeds that both have" },
    { name: "p", title: "two-sided paired permutation test", kind: "number" },
    { name: "smallest p", title: "the least p that so many pairs can give", kind: "number" },
    { name: "p, Holm", title: "corrected for all comparisons of this metric", kind: "number" },
  ];
  table(byId("results-table"), { caption: `${metric}, a row a condition`, columns, rows });
}

function runTable() {
  const columns = [
    { name: "status" },
    ...report.factors.map((factor) => ({ name: factor.short, title: factor.name })),
    { name: "seed" },
    ...report.run_metrics.map((name) => ({ name })),
    { name: "files", kind: "links" },
    { name: "run", title: "its directory" },
  ];
  const rows = report.runs.map((run) => [
    run.status,
    ...report.conditions[run.condition].values,
    run.seed,
    ...run.results,
    { value: run.links.length, links: run.links },
    run.name,
  ]);
  table(byId("runs-table"), { caption: "A row a run", columns, rows });
}

const metricNames = Object.keys(report.statistics);
if (metricNames.length) {
  options(byId("results-metric"), metricNames.map((name) => [name, name]));
  byId("results-metric").addEventListener("change", conditionTable);
  conditionTable();
} else {
  byId("results-metric").disabled = true;
  byId("results-table").replaceChildren(make("p", {}, "No run has a result yet."));
}
runTable();
