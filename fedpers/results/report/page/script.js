"use strict";
// Sorting of tables, and the figures: Vega-Lite specifications filled from the page's own data.
const dark = matchMedia("(prefers-color-scheme: dark)");
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const LABELS = {
  round: "round", bytes: "bytes sent, both ways", gradients: "gradient evaluations", seconds: "seconds in rounds",
  hours: "simulated hours",
  accuracy: "test accuracy", worst_decile: "worst tenth of the clients", loss: "test loss",
};
const DASHES = [[1, 0], [7, 3], [2, 2.5], [9, 3, 2, 3]];  // a second cue beside colour

// ---- tables -------------------------------------------------------------------------------------

function key(row, column) {
  const text = row.cells[column].textContent.trim().replace(/\u2212/g, "-");
  const number = parseFloat(text);
  return Number.isNaN(number) ? text : number;
}

function compare(a, b) {
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;  // what has no number comes last
  return typeof a === "number" ? a - b : a.localeCompare(b);
}

function sort(heading) {
  const body = heading.closest("table").tBodies[0];
  const down = heading.ariaSort ? heading.ariaSort === "ascending" : heading.dataset.first === "descending";
  for (const other of heading.parentNode.cells) other.removeAttribute("aria-sort");
  heading.ariaSort = down ? "descending" : "ascending";
  const rows = [...body.rows].map(row => [key(row, heading.cellIndex), row]);
  const sign = ([a], [b]) => down && typeof a === typeof b ? -1 : 1;
  rows.sort((a, b) => sign(a, b) * compare(a[0], b[0]));
  body.append(...rows.map(([, row]) => row));
}

for (const button of document.querySelectorAll("th button"))
  button.addEventListener("click", () => sort(button.parentNode));

// ---- figures ------------------------------------------------------------------------------------

function lifted(colour) {  // as color-mix in the style sheet: lighter on a dark page
  if (!dark.matches) return colour;
  const mixed = [1, 3, 5].map(i => Math.round(parseInt(colour.slice(i, i + 2), 16) * .68 + 255 * .32));
  return `rgb(${mixed})`;
}

function config() {
  const [ink, soft, line] = ["--ink", "--soft", "--line"].map(css);
  const font = getComputedStyle(document.body).fontFamily;
  return {
    background: null, font, view: {stroke: null},
    axis: {labelColor: soft, titleColor: soft, gridColor: line, domainColor: soft, tickColor: soft, titleFontWeight: 400,
      labelFontSize: 11.5, titleFontSize: 12, titlePadding: 9, tickSize: 4},
    axisX: {grid: false}, axisY: {domain: false, ticks: false, labelPadding: 6, tickCount: 5, titleColor: ink},
  };
}

function colour(data) {
  return {field: "name", type: "nominal", legend: null, scale: {domain: data.names, range: data.colours.map(lifted)}};
}

function dash(data) {
  return {field: "name", type: "nominal", legend: null,
    scale: {domain: data.names, range: data.names.map((_, i) => DASHES[i % DASHES.length])}};
}

const share = name => name !== "loss";
const HOVER = {name: "near", select: {type: "point", on: "pointermove", nearest: true, clear: "pointerout"}};
const SHOWN = {condition: {param: "near", empty: false, value: 1}, value: 0};

function curves(data, state) {
  const {x, y} = state, format = share(y) ? ".2%" : ".4f";
  const shown = data.curves.filter(p => !state.hidden.has(p.name) && p[y] != null && p[x] != null);
  const X = {field: x, type: "quantitative", title: LABELS[x], axis: {format: x === "round" ? "d" : "~s", tickCount: 6}};
  const Y = {field: y, type: "quantitative", title: null, scale: {zero: false}, axis: {format: share(y) ? ".0%" : "~g"}};
  return {
    width: "container", height: 330, data: {values: shown}, encoding: {x: X, color: colour(data)},
    layer: [
      {mark: {type: "area", opacity: .13}, encoding: {y: {...Y, field: `${y}_low`}, y2: {field: `${y}_high`}}},
      {mark: {type: "line", strokeWidth: 2.3, strokeCap: "round"}, encoding: {y: Y, strokeDash: dash(data), order: {field: "round"}}},
      {params: [HOVER], mark: {type: "point", filled: true, size: 85}, encoding: {y: Y, opacity: SHOWN, tooltip: [
        {field: "name", title: "method"}, {field: "round"}, {field: y, title: LABELS[y], format},
        {field: "bytes", title: "bytes", format: ".3s"}, {field: "gradients", title: "gradients", format: ".3s"},
        {field: "seconds", title: "seconds", format: ".3s"}]}},
    ],
  };
}

function clients(data, state) {
  const field = data.clients.some(c => c.gain != null) ? "gain" : "accuracy";
  const shown = data.clients.filter(c => c[field] != null && !state.hidden.has(c.name));
  const names = data.names.filter(n => shown.some(c => c.name === n));
  const Y = {field: "name", type: "nominal", sort: names, title: null, axis: {labelLimit: 130, labelColor: css("--ink")}};
  const zero = {mark: {type: "rule", strokeDash: [3, 3], color: css("--soft")}, encoding: {x: {datum: 0}}};
  const X = {field, type: "quantitative", title: field === "gain" ? "accuracy above (below) local training" : "test accuracy",
    axis: {format: field === "gain" ? "+.0%" : ".0%", tickCount: 6}};
  return {
    width: "container", height: 46 * names.length + 44, data: {values: shown},
    transform: [{calculate: "((datum.client * 0.618034 + datum.seed * 0.271) % 1 - 0.5) * 0.72", as: "jitter"}],
    layer: [
      ...(field === "gain" ? [zero] : []),
      {params: [HOVER], mark: {type: "circle", size: 46}, encoding: {x: X, y: Y, color: colour(data),
        yOffset: {field: "jitter", type: "quantitative", scale: {domain: [-.5, .5]}},
        opacity: {condition: {param: "near", empty: false, value: 1}, value: .55},
        tooltip: [{field: "name", title: "method"}, {field: "client"},
          ...(data.clients.some(c => c.called) ? [{field: "called", title: "name"}] : []), {field: "seed"},
          {field: "accuracy", title: "accuracy", format: ".1%"},
          ...(field === "gain" ? [{field: "gain", title: "gain", format: "+.1%"}] : [])]}},
    ],
  };
}

const DRAW = {curves, clients};

function figure(element) {
  const data = JSON.parse(document.getElementById(element.dataset.source).textContent);
  const state = {x: "round", y: data.metrics[0], hidden: new Set()};
  const chart = element.querySelector(".chart");
  let last = Promise.resolve();
  const draw = () => {
    last = last.then(old => {
      if (old) old.finalize();
      return vegaEmbed(chart, {...DRAW[element.dataset.figure](data, state), autosize: {type: "fit", contains: "padding"}},
        {mode: "vega-lite", renderer: "svg", actions: false, config: config(), tooltip: {theme: "page"}});
    });
  };
  for (const button of element.querySelectorAll("[data-set]"))
    button.addEventListener("click", () => {
      for (const other of button.parentNode.children) other.ariaPressed = String(other === button);
      state[button.dataset.set] = button.value;
      draw();
    });
  for (const button of element.querySelectorAll("[data-name]"))
    button.addEventListener("click", () => {
      const shown = button.ariaPressed === "true";
      button.ariaPressed = String(!shown);
      state.hidden[shown ? "add" : "delete"](button.dataset.name);
      draw();
    });
  dark.addEventListener("change", draw);
  draw();
}

document.querySelectorAll("[data-figure]").forEach(figure);
