"use strict";
// The report's heatmaps: a sentence of a run at a time, stepped through by buttons or selects.

function attention() {
  if (!report.attention.length) return absent("attention", "No run has drawn attention weights.");
  const canvas = make("div", { class: "canvas", role: "img" });
  const numbers = make("div");
  const details = make("details", {}, make("summary", {}, "The weights of this plot"), numbers);
  const words = make("p", { role: "status" });
  byId("attention-plot").replaceChildren(words, canvas, details);

  /** A labelled select between a button back and a button on; its value is an index. */
  function stepper(name) {
    const select = make("select", { id: `attention-${name}`, onchange: () => choose() });
    const go = (by) => () => {
      const count = select.options.length;
      select.selectedIndex = (select.selectedIndex + by + count) % count;
      choose();
    };
    const back = make("button", { type: "button", "aria-label": `previous ${name}`, onclick: go(-1) }, "‹");
    const on = make("button", { type: "button", "aria-label": `next ${name}`, onclick: go(1) }, "›");
    const whole = make("div", { class: "stepper" }, make("label", { for: select.id }, name), select, back, on);
    byId("attention-controls").append(whole);
    return {
      get index() {
        return select.selectedIndex;
      },
      fill(texts) {
        const before = Math.max(0, select.selectedIndex);
        options(select, texts.map((text, k) => [k, text]));
        select.selectedIndex = Math.min(before, texts.length - 1);
        whole.hidden = texts.length < 2 && name !== "run" && name !== "example";
        whole.style.display = whole.hidden ? "none" : "";
      },
    };
  }
  const [runs, examples, layers, heads] = ["run", "example", "layer", "head"].map(stepper);
  const cut = (text, longest) => (text.length > longest ? `${text.slice(0, longest - 1)}…` : text);
  const count = (n) => [...Array(n).keys()].map(String);
  runs.fill(report.attention.map((run) => report.runs[run.point].label));
  let open = null;

  function choose() {
    const run = report.attention[runs.index];
    examples.fill(run.examples.map((one, k) => `${k}: ${cut(one.source.join(" "), 60)}`));
    const example = run.examples[examples.index];
    layers.fill(count(example.weights.length));
    heads.fill(count(example.weights[0].length));
    draw(example, example.weights[layers.index][heads.index]);
  }
  function draw({ source, target }, whole) {
    const weights = whole.map((row) => row.map((w) => (w === null ? null : w / report.precision)));
    const [smallest, largest] = extent(weights.flat());
    const low = Math.min(0, smallest);
    const high = Math.max(1, largest, -low);
    const scale = low < 0
      ? { colorscale: "RdBu", zmin: -high, zmax: high }
      : { colorscale: [[0, variable("--heat0")], [1, variable("--heat1")]], zmin: 0, zmax: high };
    const text = weights.map((row, i) => row.map((w, j) =>
      `output: ${plain(target[i])}<br>source: ${plain(source[j])}<br>weight: ${w === null ? "not a number" : w.toFixed(4)}`));
    const ticks = (tokens) => ({
      tickvals: tokens.map((_, k) => k),
      ticktext: tokens.map((token) => plain(cut(token.trim() ? token : "␣", 20))),
      showgrid: false, ticks: "", fixedrange: true,
    });
    const wide = canvas.clientWidth || 800;
    const cell = Math.max(16, Math.min(34, (wide - 120) / source.length));
    const laidOut = layout(target.length * cell + 150, { ...ticks(source), side: "top", tickangle: -60 },
      { ...ticks(target), autorange: "reversed" });
    laidOut.margin = { l: 20, r: 10, t: 20, b: 10 };
    laidOut.width = Math.min(wide, source.length * cell + 220);
    laidOut.xaxis.tickfont = laidOut.yaxis.tickfont = { size: cell < 20 ? 10 : 12 };
    const bar = { thickness: 12, len: Math.min(1, 200 / (target.length * cell)), outlinewidth: 0, y: 1, yanchor: "top" };
    const trace = { type: "heatmap", z: weights, text, hoverinfo: "text", xgap: 1, ygap: 1, colorbar: bar, ...scale };
    Plotly.react(canvas, [trace], laidOut, { ...CONFIG, responsive: false });
    words.textContent = `${source.join(" ")} → ${target.join(" ")}`;
    canvas.setAttribute("aria-label", `Attention weights, ${target.length} output tokens by ` +
      `${source.length} source tokens, of: ${words.textContent}. The table below holds the numbers.`);
    const columns = ["output", ...source].map((name) => ({ name }));
    open = { caption: "Weights: a row an output token, a column a source token", columns, filter: false,
      rows: weights.map((row, i) => [target[i], ...row.map((w) => ({ value: w, text: w === null ? "–" : w.toFixed(4) }))]) };
    if (details.open) table(numbers, open);
  }
  details.addEventListener("toggle", () => details.open && table(numbers, open));
  dark.addEventListener("change", choose);
  let width = canvas.clientWidth;
  new ResizeObserver(() => {
    if (canvas.clientWidth === width) return;
    width = canvas.clientWidth;
    choose();
  }).observe(canvas);
  choose();
}

attention();
