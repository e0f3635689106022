"use strict";
// The report's line plots: a metric against an axis, learning curves, accuracy by source length.

// Okabe & Ito's colours, told apart by colour-blind readers; black is white in the dark.
const COLOURS = {
  light: ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7f7f7f"],
  dark: ["#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#4f9be0", "#ffffff", "#F0E442"],
};
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];
const MARKERS = ["circle", "square", "triangle-up", "diamond", "cross", "x", "star", "pentagon"];
const BANDS = 8; // series up to which they are drawn
const LISTED = 2000; // rows of a plot's table

function style(index) {
  const colour = COLOURS[dark.matches ? "dark" : "light"][index % 8];
  return { colour, dash: DASHES[Math.floor(index / 8) % 5], marker: MARKERS[index % 8] };
}

function translucent(colour, alpha) {
  const parts = [1, 3, 5].map((k) => parseInt(colour.slice(k, k + 2), 16));
  return `rgba(${parts.join(",")},${alpha})`;
}

function variable(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** A layout in the page's colours. */
function layout(height, x, y) {
  const axis = { gridcolor: variable("--grid"), linecolor: variable("--line"), zeroline: false, automargin: true };
  return {
    height,
    margin: { l: 50, r: 10, t: 10, b: 40 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: variable("--ink"), size: 13, family: "system-ui, sans-serif" },
    hoverlabel: { bgcolor: variable("--tint"), bordercolor: variable("--line"), font: { color: variable("--ink") }, align: "left", namelength: -1 },
    showlegend: false,
    hovermode: "closest",
    dragmode: false,
    xaxis: { ...axis, ...x },
    yaxis: { ...axis, ...y },
  };
}

const CONFIG = { responsive: true, displaylogo: false, displayModeBar: false, typesetMath: false };

/**
 * What a plot's section holds: the canvas, its numbers as a table, keys that switch series on and
 * off. `keys(labels)` gives what is switched on and calls `draw` when that changes.
 */
function panel(id, draw) {
  const canvas = make("div", { class: "canvas", role: "img" });
  const numbers = make("div");
  const details = make("details", {}, make("summary", {}, "The numbers of this plot"), numbers);
  const legend = make("div");
  let labels = [];
  let on = new Set();
  let content = null;
  function fill() {
    if (details.open && content) table(numbers, { ...content, filter: false });
  }
  function sample(index) {
    const { colour, dash } = style(index);
    const lengths = { solid: "", dash: "7 4", dot: "2 3", dashdot: "7 3 2 3", longdash: "11 4" }[dash];
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
    for (const [name, value] of [["width", 26], ["height", 10], ["aria-hidden", "true"]]) svg.setAttribute(name, value);
    for (const [name, value] of [["d", "M1 5H25"], ["stroke", colour], ["stroke-width", 3], ["stroke-dasharray", lengths]]) line.setAttribute(name, value);
    svg.append(line);
    return svg;
  }
  function showKeys(title) {
    const boxes = labels.map((label, k) => {
      const box = make("input", { type: "checkbox", checked: on.has(k) });
      box.addEventListener("change", () => {
        if (box.checked) on.add(k);
        else on.delete(k);
        draw();
      });
      return make("label", {}, box, sample(k), label);
    });
    const only = (wanted) => {
      on = new Set([...labels.keys()].filter((k) => wanted(labels[k])));
      boxes.forEach((label, k) => (label.firstChild.checked = on.has(k)));
      draw();
    };
    const parts = [make("legend", {}, title), make("div", { class: "keys" }, ...boxes)];
    if (labels.length > 3) {
      const one = (name, some) => make("button", { type: "button", onclick: () => only(() => some) }, name);
      const words = make("input", { type: "search", autocomplete: "off" });
      words.addEventListener("input", () => only(having(words.value)));
      const search = make("label", {}, "only those with ", words);
      parts.push(make("div", { class: "keybuttons" }, one("all", true), one("none", false), search));
    }
    legend.replaceChildren(make("fieldset", {}, ...parts));
  }
  details.addEventListener("toggle", fill);
  byId(`${id}-plot`).replaceChildren(canvas, legend, details);
  return {
    canvas,
    keys(found, title) {
      if (found.join("\n") !== labels.join("\n")) {
        labels = found;
        on = new Set(labels.keys());
        showKeys(title);
      }
      return on;
    },
    recolour() {
      if (labels.length) showKeys(legend.querySelector("legend").textContent);
      draw();
    },
    draw(traces, laidOut, description, { caption, columns, rows }) {
      Plotly.react(canvas, traces, laidOut, CONFIG);
      canvas.setAttribute("aria-label", `${description} The table below holds the numbers.`);
      const cut = rows.length > LISTED ? ` (the first ${LISTED} of ${rows.length} rows; figures/ has all)` : "";
      content = { caption: caption + cut, columns, rows: rows.slice(0, LISTED) };
      fill();
    },
  };
}

function absent(id, text) {
  byId(`${id}-plot`).replaceChildren(make("p", {}, text));
  byId(id).querySelectorAll(".controls select, .controls input").forEach((x) => (x.disabled = true));
}

/** Lines with bands, a series a condition: learning curves and accuracy by length. */
function lines(id, all, xTitle, none) {
  const names = Object.keys(all);
  if (!names.length) return absent(id, none);
  const select = byId(`${id}-metric`);
  const log = byId(`${id}-log`);
  options(select, names.map((name) => [name, name]));
  const there = panel(id, draw);
  const labels = report.conditions.map((condition) => condition.label);
  function draw() {
    const name = select.value;
    const on = there.keys(labels, "Conditions");
    const series = all[name].filter((one) => on.has(one.condition));
    const traces = [];
    for (const one of series) {
      const { colour, dash, marker } = style(one.condition);
      const edge = { x: one.x, mode: "lines", line: { width: 0 }, hoverinfo: "skip" };
      if (series.length <= BANDS && one.n.some((n) => n > 1)) {
        traces.push({ ...edge, y: one.high });
        traces.push({ ...edge, y: one.low, fill: "tonexty", fillcolor: translucent(colour, 0.2) });
      }
      traces.push({
        x: one.x, y: one.y, mode: one.x.length > 30 ? "lines" : "lines+markers",
        line: { color: colour, dash, width: 2 }, marker: { symbol: marker, size: 7, color: colour },
        hoverinfo: "text",
        text: one.x.map((x, k) => `${plain(labels[one.condition])}<br>${xTitle} ${x}: ${one.y[k]}` +
          (one.n[k] > 1 ? `<br>${one.low[k]} to ${one.high[k]} (n = ${one.n[k]})` : "<br>n = 1")),
      });
    }
    const y = { title: { text: plain(name) }, type: log && log.checked ? "log" : "linear" };
    const rows = series.flatMap((one) => one.x.map((x, k) => [labels[one.condition], x, one.y[k], one.low[k], one.high[k], one.n[k]]));
    const columns = ["condition", xTitle, "mean", "smallest", "largest", "n"].map((title) => ({ name: title }));
    const last = series.map((one) => `${labels[one.condition]}: ${one.y.at(-1)} at ${one.x.at(-1)}`);
    const words = `${name} against ${xTitle}, ${series.length} lines. ${last.slice(0, 8).join("; ")}.`;
    there.draw(traces, layout(400, { title: { text: xTitle } }, y), words, { caption: `${name} against ${xTitle}`, columns, rows });
  }
  function choose() {
    const [low, high] = extent(all[select.value].flatMap((one) => one.y));
    if (log) log.checked = /loss/.test(select.value) && low > 0 && high > 10 * low;
    draw();
  }
  select.addEventListener("change", choose);
  if (log) log.addEventListener("change", draw);
  dark.addEventListener("change", there.recolour);
  choose();
}

/** A metric against one factor; a line for each combination of the others. */
function axisPlot() {
  if (!metricNames.length) return absent("axis", "No run has a result yet.");
  const [metricSelect, axisSelect, log] = ["metric", "axis", "log"].map((name) => byId(`axis-${name}`));
  options(metricSelect, metricNames.map((name) => [name, name]));
  options(axisSelect, [...report.factors.map((factor, k) => [k, factor.name]), [-1, "condition"]]);
  axisSelect.value = String(report.axis);
  const there = panel("axis", draw);
  const shortName = (k) => report.factors[k].short;
  function draw() {
    const metric = metricSelect.value;
    const axis = Number(axisSelect.value);
    const factor = report.factors[axis];
    const numeric = axis >= 0 && factor.numeric;
    const groups = new Map();
    report.conditions.forEach((condition, c) => {
      const others = condition.values.map((value, k) => `${shortName(k)}=${value}`).filter((_, k) => k !== axis);
      const name = axis < 0 || !others.length ? metric : others.join(", ");
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(c);
    });
    const names = [...groups.keys()];
    const on = there.keys(names, axis < 0 || names.length === 1 ? "Shown" : "A line for each");
    const where = (c) => (axis < 0 ? plain(report.conditions[c].label) : numeric ? report.conditions[c].values[axis] : plain(report.conditions[c].values[axis]));
    // A condition without a number on this axis lies across all of it.
    const places = (c) => (numeric && typeof where(c) !== "number" ? factor.ticks : [where(c)]).map((x) => [c, x]);
    const traces = [];
    const rows = [];
    // Lines a little apart, so that one interval does not hide another.
    const scaled = (x) => (log.checked ? Math.log(x) : x);
    const width = numeric ? scaled(factor.ticks.at(-1)) - scaled(factor.ticks[0]) : 0;
    function apart(x, k) {
      if (!numeric || names.length < 2) return x;
      const by = 0.03 * width * (k / (names.length - 1) - 0.5);
      return log.checked ? x * Math.exp(by) : x + by;
    }
    names.forEach((name, k) => {
      if (!on.has(k)) return;
      const { colour, dash, marker } = style(k);
      const done = groups.get(name).filter((c) => report.statistics[metric][c].n);
      const members = done.flatMap(places);
      if (numeric) members.sort((a, b) => a[1] - b[1]);
      const found = members.map(([c]) => report.statistics[metric][c]);
      const at = report.metrics.indexOf(metric);
      const dots = members.flatMap(([c, x]) => report.conditions[c].runs.map((r) => [c, x, report.runs[r]]))
        .filter(([, , run]) => run.values[at] !== null);
      const group = { offsetgroup: String(k), showlegend: false };
      traces.push({
        ...group, x: dots.map(([, x]) => apart(x, k)), y: dots.map(([, , run]) => run.values[at]), mode: "markers",
        marker: { color: translucent(colour, 0.45), size: 5, symbol: marker }, hoverinfo: "text",
        text: dots.map(([c, , run]) => `${plain(report.conditions[c].label)}<br>seed ${run.seed}: ${run.values[at]}`),
      });
      traces.push({
        ...group, x: members.map(([, x]) => apart(x, k)), y: found.map((one) => one.mean), mode: numeric ? "lines+markers" : "markers",
        line: { color: colour, dash, width: 2 }, marker: { color: colour, size: 10, symbol: marker }, hoverinfo: "text",
        error_y: {
          type: "data", symmetric: false, color: colour, thickness: 1.5, width: 5,
          array: found.map((one) => (one.high === null ? 0 : one.high - one.mean)),
          arrayminus: found.map((one) => (one.low === null ? 0 : one.mean - one.low)),
        },
        text: found.map((one, m) => `${plain(report.conditions[members[m][0]].label)}<br>${plain(metric)}: ${one.mean.toPrecision(5)}` +
          (one.low === null ? "" : `<br>[${one.low.toPrecision(5)}, ${one.high.toPrecision(5)}]`) + `<br>n = ${one.n}`),
      });
      for (const c of done) {
        const one = report.statistics[metric][c];
        rows.push([report.conditions[c].label, one.mean, one.low, one.high, one.n]);
      }
    });
    const title = axis < 0 ? "" : plain(factor.name);
    const few = numeric && factor.ticks.length <= 10;
    const ticks = few ? { tickvals: factor.ticks, ticktext: factor.ticks.map(String) } : numeric ? {} : { type: "category" };
    const x = { title: { text: title }, ...ticks, ...(numeric ? { type: log.checked ? "log" : "linear" } : {}) };
    if (!numeric && axis >= 0) Object.assign(x, { categoryorder: "array", categoryarray: factor.ticks.map(plain) });
    const laidOut = layout(axis < 0 ? 520 : 420, x, { title: { text: plain(metric) } });
    if (!numeric && axis >= 0) Object.assign(laidOut, { scattermode: "group", scattergap: 0.4 });
    const columns = ["condition", "mean", "low", "high", "n"].map((name) => ({ name }));
    const words = `${metric} against ${axis < 0 ? "the condition" : factor.name}, ${on.size} series.`;
    there.draw(traces, laidOut, words, { caption: `${metric} by condition`, columns, rows });
  }
  function choose() {
    const factor = report.factors[Number(axisSelect.value)];
    log.disabled = !(factor && factor.numeric && Math.min(...factor.ticks) > 0);
    log.checked = !log.disabled && factor.logarithmic;
    draw();
  }
  metricSelect.addEventListener("change", draw);
  axisSelect.addEventListener("change", choose);
  log.addEventListener("change", draw);
  dark.addEventListener("change", there.recolour);
  choose();
}

axisPlot();
lines("curves", report.curves, "step", "No run has logged a step yet.");
lines("lengths", report.lengths, "source tokens", "No run has written figures/accuracy_by_length.csv.");
