// The report's script: tables sort by a click on a column, and uPlot draws the charts from the data in the page.
"use strict";

const every = (selector, act, within = document) => within.querySelectorAll(selector).forEach(act);

function el(name, more, ...children) {
  const element = Object.assign(document.createElement(name), more);
  element.append(...children);
  return element;
}

// Tables.

every("table", (table) => {
  const value = (row, column) => {
    const cell = row.cells[column];
    return cell.tagName === "TH" ? cell.textContent : parseFloat(cell.dataset.v);
  };
  const compare = (one, other) => {
    if (typeof one === "string") return one.localeCompare(other, "en", { numeric: true });
    if (isNaN(one) || isNaN(other)) return isNaN(one) - isNaN(other);
    return one - other;
  };
  every("thead th", (head, column) => {
    const button = el("button", { type: "button" }, ...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      every("thead th", (it) => it.removeAttribute("aria-sort"), table);
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows].sort((one, other) => compare(value(one, column), value(other, column)));
      table.tBodies[0].append(...(down ? rows.reverse() : rows));
    });
  }, table);
});

// Charts.

const PLOTS = JSON.parse(document.getElementById("plots").textContent);
// Blue and brass first: readers who cannot tell red from green can tell these apart.
const COLOURS = ["--c4", "--c3", "--c1", "--c5", "--c2", "--c6"];
// One for each round of the colours.
const DASHES = [[], [7, 3], [2, 3], [9, 3, 2, 3]];
const CLOCK_STEPS_S = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400];

/** Three digits, or all digits of a whole number. */
const digits = (it) => (Math.abs(it) >= 100 ? Math.round(it) : Number(it.toPrecision(3))).toLocaleString("en");
const UNITS = {
  seconds: (it) => (it < 0.9995 ? `${digits(it * 1000)} ms` : `${digits(it)} s`),
  clock: (it) => {
    const pad = (number) => String(Math.floor(number)).padStart(2, "0");
    return it < 3600 ? `${Math.floor(it / 60)}:${pad(it % 60)}` : `${Math.floor(it / 3600)}:${pad((it / 60) % 60)}:${pad(it % 60)}`;
  },
  share: (it) => `${digits(it * 100)} %`,
  count: digits,
};

let drawn = [];
const hidden = new Set();
const look = (strategy) => ({ colour: COLOURS[strategy % COLOURS.length], dash: DASHES[Math.floor(strategy / COLOURS.length) % DASHES.length] });

/** 1, 2 or 5 times a power of ten: every one between two values. */
function steps(low, high) {
  const all = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    all.push(...[1, 2, 5].map((it) => it * 10 ** power));
  }
  return all;
}

function scale(axis) {
  if (!axis.log) return { time: false, range: (_, __, max) => [0, axis.end ?? (max > 0 ? max * 1.05 : 1)] };
  const range = (_, min, max) => {
    const low = Math.max(min, 1e-6);
    const all = steps(low, Math.max(max, low * 1.001));
    return [all.findLast((it) => it <= low * 1.001), all.find((it) => it >= Math.max(max, low * 1.01) * 0.999)];
  };
  return { time: false, distr: 3, range };
}

function axis({ title, unit, log }, base, more) {
  const shown = (_, ticks) => ticks.map((it) => (it === null ? "" : UNITS[unit](it)));
  const ticks = log && {
    splits: (_, __, low, high) => steps(low, high).filter((it) => it >= low * 0.999 && it <= high * 1.001),
    filter: (plot, all, index) => {
      const labels = (index === 0 ? plot.bbox.width / 60 : plot.bbox.height / 30) / devicePixelRatio;
      return all.map((it) => (all.length <= labels || Math.log10(it) % 1 === 0 ? it : null));
    },
  };
  const label = title && { label: title, labelSize: 20, labelGap: 0 };
  return { ...base, values: shown, ...(unit === "clock" && { incrs: CLOCK_STEPS_S }), ...ticks, ...more, ...label };
}

function series(it, index, colour) {
  const { colour: name, dash } = look(it.strategy ?? index);
  const stroke = colour(name);
  const base = { label: it.name, scale: "y", stroke, width: 1.8, dash, points: window.plotting.points(stroke), show: !hidden.has(it.strategy) };
  const none = { points: { show: false }, dash: [] };
  switch (it.look) {
    case "dots": return { ...base, points: { show: true, size: 7, fill: stroke } };
    case "thin": return { ...base, width: 1.1 };
    case "area": return { ...base, ...none, width: 0, fill: colour("--track") };
    case "reference": return { ...base, ...none, stroke: colour("--quiet"), width: 1, dash: [4, 3] };
    case "edge": return { ...base, ...none, width: 0 };
    default: return base;
  }
}

/** A dashed line across the chart at the target. */
function mark(plot, target, colour) {
  const { ctx, bbox } = plot;
  const x = plot.valToPos(target, "x", true);
  const right = x > bbox.left + bbox.width * 0.8;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = colour("--quiet");
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash([4, 3].map((it) => it * devicePixelRatio));
  ctx.beginPath();
  ctx.moveTo(x, bbox.top - 12 * devicePixelRatio);
  ctx.lineTo(x, bbox.top + bbox.height);
  ctx.stroke();
  ctx.font = `${11 * devicePixelRatio}px ${getComputedStyle(document.body).fontFamily}`;
  ctx.textAlign = right ? "right" : "left";
  ctx.fillText(`target ${UNITS.seconds(target)}`, x + (right ? -5 : 5) * devicePixelRatio, bbox.top - 5 * devicePixelRatio);
  ctx.restore();
}

/** Dims all strategies but one, in all charts. */
function highlight(strategy) {
  for (const { plot, data } of drawn) {
    const index = data.series.findIndex((it) => it.strategy === strategy);
    plot.setSeries(strategy === null || index < 0 ? null : index + 1, { focus: true });
  }
}

function toggle(strategy) {
  const show = hidden.delete(strategy);
  if (!show) hidden.add(strategy);
  for (const { plot, data } of drawn) {
    data.series.forEach((it, index) => { if (it.strategy === strategy) plot.setSeries(index + 1, { show }); });
  }
  every(`[data-strategy="${strategy}"]`, (it) => (it.tagName === "BUTTON" ? it.setAttribute("aria-pressed", String(show)) : it.classList.toggle("off", !show)));
}

/** Names beside a chart, with the values at the cursor, or the summary without one. */
function legend(data, colour) {
  const at = el("p", { className: "at" });
  const rows = data.series.map((it, index) => ({ it, index })).sort((one, other) => (other.it.summary ?? Infinity) - (one.it.summary ?? Infinity));
  const entries = rows.map(({ it, index }) => {
    const value = el("b");
    const line = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    const drawn = series(it, index, colour);
    path.setAttribute("d", "M0 4h26");
    path.setAttribute("stroke", drawn.fill ?? drawn.stroke);
    path.setAttribute("stroke-width", it.look === "area" ? 8 : 2);
    path.setAttribute("stroke-dasharray", drawn.dash.join(" "));
    line.append(path);
    const isStrategy = it.strategy !== undefined;
    const entry = el(isStrategy ? "button" : "span", { className: "entry" }, line, el("span", {}, it.name), value);
    if (isStrategy) {
      Object.assign(entry, { type: "button" });
      entry.dataset.strategy = it.strategy;
      entry.setAttribute("aria-pressed", String(!hidden.has(it.strategy)));
      entry.addEventListener("click", () => toggle(it.strategy));
      for (const [event, strategy] of [["pointerenter", it.strategy], ["focus", it.strategy], ["pointerleave", null], ["blur", null]]) {
        entry.addEventListener(event, () => highlight(strategy));
      }
    }
    return { entry, value, it };
  });
  const read = (index) => {
    at.textContent = index === null ? data.summary : `at ${UNITS[data.x.unit](data.at[index])}`;
    for (const { value, it } of entries) {
      const number = index === null ? it.summary : it.values[index];
      value.textContent = number === null || number === undefined ? "" : UNITS[data.y.unit](number);
    }
  };
  return { element: el("div", { className: "legend" }, at, ...entries.map((it) => it.entry)), read };
}

/** The sentence under a small chart; at the cursor, the three largest values. */
function caption(data, paragraph) {
  return (index) => {
    const largest = () => data.series.filter((it) => it.values[index] !== null).sort((one, other) => other.values[index] - one.values[index]).slice(0, 3);
    paragraph.textContent = index === null ? data.summary
      : `At ${UNITS[data.x.unit](data.at[index])}: ${largest().map((it) => `${it.name} ${UNITS[data.y.unit](it.values[index])}`).join(", ")}.`;
  };
}

function build(data) {
  const box = document.getElementById(data.id);
  const colour = window.plotting.colours();
  const small = box.parentElement.dataset.strategy !== undefined;
  const side = small ? undefined : legend(data, colour);
  if (side) {
    box.parentElement.querySelector(".legend")?.remove();
    box.after(side.element);
  }
  const read = side?.read ?? caption(data, box.nextElementSibling);
  const readCursor = (plot) => read(plot.cursor.idx ?? null);
  const base = window.plotting.axis(colour);
  const edges = data.series.findIndex((it) => it.look === "edge") + 1;
  const options = {
    width: Math.max(box.clientWidth, 100),
    height: small ? 140 : 300,
    padding: [data.x.target ? 20 : 10, small ? 12 : 24, 0, 0],
    legend: { show: false },
    focus: { alpha: 0.15 },
    cursor: {
      drag: { x: false, y: false }, points: { size: 6 }, focus: { prox: 16 },
      sync: data.x.unit === "clock" ? { key: "clock", scales: ["x", null] } : undefined,
    },
    scales: { x: scale(data.x), y: scale(data.y) },
    axes: [axis(data.x, base, { size: 26, space: small ? 50 : 60 }), axis(data.y, base, { size: small ? 40 : 64, space: small ? 28 : 40 })],
    series: [{}, ...data.series.map((it, index) => series(it, index, colour))],
    bands: edges > 0 ? [{ series: [edges, edges + 1], fill: colour("--track") }] : [],
    hooks: { ready: [readCursor], setCursor: [readCursor], draw: data.x.target ? [(plot) => mark(plot, data.x.target, colour)] : [] },
  };
  return { data, box, plot: new window.uPlot(options, [data.at, ...data.series.map((it) => it.values)], box) };
}

function draw() {
  for (const { plot } of drawn) plot.destroy();
  drawn = PLOTS.map(build);
}

function theme(name) {
  if (name === undefined) delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  draw();
}

draw();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
// Paper is light.
addEventListener("beforeprint", () => theme("light"));
addEventListener("afterprint", () => theme());
new ResizeObserver(() => {
  for (const { plot, box } of drawn) if (box.clientWidth > 0 && box.clientWidth !== plot.width) plot.setSize({ width: box.clientWidth, height: plot.height });
}).observe(document.querySelector("main"));
