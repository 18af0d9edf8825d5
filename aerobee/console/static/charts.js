// Charts over time as SVG, each with a readout that the mouse and the arrow keys move, and the same numbers as a table.

import { get } from "./api.js";
import { failure, h, moment, number, table, timeZone } from "./parts.js";

const HEIGHT = 170;
const LEFT = 58;
const RIGHT = 10;
const TOP = 10;
const BOTTOM = 22;
const FETCH_MS = 3500;

function svg(tag, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

// The ends of equal steps of 1, 2 or 5 times a power of ten, from 0 to at least `most`.
function ticks(most, unit) {
  if (!(most > 0)) return [0, 1];
  const ofTime = most >= 14_400_000 ? 3_600_000 : most >= 600_000 ? 60_000 : 1;
  const base = unit === "bytes" ? 1024 ** Math.floor(Math.log(most) / Math.log(1024)) : unit === "ms" ? ofTime : 1;
  const raw = most / base / 4;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((each) => each * power >= raw) * power * base;
  const ends = [];
  for (let at = 0; at < most + step; at += step) ends.push(at);
  return ends;
}

function clock(ms, stepMs) {
  const text = moment(ms);
  if (stepMs >= 3_600_000) return text.slice(5, 10);
  return stepMs >= 60_000 ? text.slice(11, 16) : text.slice(11, 19);
}

function draw(chart, data, width) {
  const most = Math.max(0, ...chart.lines.flatMap((line) => line.values.filter((value) => value !== null)));
  const ends = ticks(most, chart.unit);
  const top = ends[ends.length - 1];
  const x = (at) => LEFT + (at / Math.max(1, data.points - 1)) * (width - LEFT - RIGHT);
  const y = (value) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - TOP - BOTTOM);
  const root = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, "aria-hidden": "true", focusable: "false" });
  for (const end of ends) {
    root.append(svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(end), y2: y(end) }),
      svg("text", { x: LEFT - 6, y: y(end) + 4, "text-anchor": "end" }, number(end, chart.unit)));
  }
  const labels = width < 420 ? 2 : 4;
  for (let at = 0; at <= labels; at += 1) {
    const point = Math.round((at / labels) * (data.points - 1));
    root.append(svg("text", { x: x(point), y: HEIGHT - 6, "text-anchor": at === 0 ? "start" : at === labels ? "end" : "middle" }, clock(data.begin_ms + point * data.step_ms, data.step_ms)));
  }
  chart.lines.forEach((line, which) => {
    const gap = data.gap_ms / data.step_ms;
    let path = "";
    let last = -Infinity;
    line.values.forEach((value, at) => {
      if (value === null) return;
      const spot = `${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
      // A point between two gaps is a dot: a line of no length with round ends.
      path += at - last <= gap ? `L${spot}` : `M${spot}h0`;
      last = at;
    });
    root.append(svg("path", { class: `line c${which}`, d: path }));
  });
  const cursor = svg("line", { class: "cursor", x1: 0, x2: 0, y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  root.append(cursor);
  return { root, place(at) { cursor.setAttribute("visibility", "visible"); cursor.setAttribute("x1", x(at)); cursor.setAttribute("x2", x(at)); },
    at(offset) { return Math.max(0, Math.min(data.points - 1, Math.round(((offset - LEFT) / (width - LEFT - RIGHT)) * (data.points - 1)))); } };
}

function figure(title) {
  const heading = h("h3", {}, title);
  const plot = h("div", { class: "plot", tabindex: "0", role: "slider", "aria-orientation": "horizontal", "aria-label": `${title}: move along the time axis with the arrow keys` });
  const readout = h("p", { class: "readout" });
  const details = h("details", {}, h("summary", {}, "As a table"), h("div"));
  const element = h("figure", { class: "card chart" }, heading, plot, readout, details);
  let chart = null, data = null, drawn = null, chosen = null, width = 0;

  const value = (line, at) => (line.values[at] === null ? "no value" : number(line.values[at], chart.unit, true));
  const at = () => (chosen === null ? data.points - 1 : chosen);
  const newest = (line) => { for (let each = data.points - 1; each >= 0; each -= 1) if (line.values[each] !== null) return each; return 0; };
  function tell() {
    const when = chosen === null ? "now" : moment(data.begin_ms + chosen * data.step_ms).slice(0, 19);
    const parts = chart.lines.map((line) => [line.name, value(line, chosen === null ? newest(line) : chosen)]);
    readout.replaceChildren(h("span", { class: "soft" }, when), ...chart.lines.map((line, which) => h("span", {}, h("span", { class: `key c${which}`, "aria-hidden": "true" }), `${parts[which][0]} ${parts[which][1]}`)));
    plot.setAttribute("aria-valuemin", "0");
    plot.setAttribute("aria-valuemax", String(data.points - 1));
    plot.setAttribute("aria-valuenow", String(at()));
    plot.setAttribute("aria-valuetext", `${when}: ${parts.map((part) => part.join(" ")).join(", ")}`);
    if (chosen !== null) drawn.place(chosen);
  }
  function fill() {
    if (!details.open) return;
    const rows = [];
    for (let each = data.points - 1; each >= 0; each -= 1) if (chart.lines.some((line) => line.values[each] !== null)) rows.push(each);
    details.lastChild.replaceChildren(table(`${title}, newest first`, [
      ["Time", (each) => moment(data.begin_ms + each * data.step_ms).slice(0, 19)],
      ...chart.lines.map((line) => [line.name, (each) => value(line, each), "number"]),
    ], rows, "No values yet."));
  }
  function redraw() {
    width = Math.max(240, Math.floor(plot.clientWidth || 520));
    drawn = draw(chart, data, width);
    plot.replaceChildren(drawn.root);
    tell();
  }
  details.addEventListener("toggle", fill);
  plot.addEventListener("pointermove", (event) => { chosen = drawn.at(event.clientX - plot.getBoundingClientRect().left); tell(); });
  plot.addEventListener("pointerleave", () => { chosen = null; redraw(); });
  plot.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === "Escape") { chosen = null; redraw(); }
    if (by === undefined) return;
    event.preventDefault();
    chosen = Math.max(0, Math.min(data.points - 1, at() + by));
    tell();
  });
  new ResizeObserver(() => { if (data && plot.clientWidth && Math.floor(plot.clientWidth) !== width) redraw(); }).observe(plot);
  return { element, set(nextChart, nextData) {
    chart = nextChart;
    data = nextData;
    if (chosen !== null && chosen >= data.points) chosen = null;
    redraw();
    fill();
  } };
}

let kept = "10m";
try { kept = localStorage.getItem("range") || kept; } catch { /* storage may be forbidden: the range lasts until the next load of the page */ }

// The charts of an item. `element` stays the same when a page is drawn again; update() requests new numbers when they are due.
export function charts(of, name = "") {
  const figures = new Map();
  const grid = h("div", { class: "charts" });
  const said = h("p", { class: "soft" });
  const buttons = h("div", { class: "bar", role: "group", "aria-label": "Range of the charts" });
  let due = 0, asked = 0;

  function show(data) {
    buttons.replaceChildren(...data.ranges.map((each) => h("button", {
      type: "button", "aria-pressed": String(each.name === data.range), "aria-disabled": each.is_available ? null : "true",
      title: each.is_available ? null : "needs aerobee console --prometheus URL",
      onclick: () => { if (each.is_available) choose(each.name); },
    }, each.name)));
    said.textContent = data.trouble || (data.charts.length ? "" : "Collecting numbers: the charts begin when the console has read the cluster twice.");
    const places = data.charts.map((chart) => {
      if (!figures.has(chart.title)) figures.set(chart.title, figure(chart.title));
      return figures.get(chart.title);
    });
    const elements = places.map((place) => place.element);
    if (elements.length !== grid.children.length || elements.some((element, at) => element !== grid.children[at])) grid.replaceChildren(...elements);
    data.charts.forEach((chart, at) => places[at].set(chart, data));
  }
  async function fetchNow() {
    asked += 1;
    const mine = asked;
    due = Date.now() + FETCH_MS;
    try {
      const data = await get("charts", { of, name, range: kept });
      if (mine !== asked) return; // the late reply to an older request
      if (data.step_ms > 60_000) due = Date.now() + 60_000;
      show(data);
    } catch (error) {
      if (error.status === 401) throw error;
      if (mine === asked) said.replaceChildren(failure(error));
    }
  }
  function choose(range) {
    kept = range;
    try { localStorage.setItem("range", range); } catch { /* as above */ }
    return fetchNow().then(() => { const pressed = buttons.querySelector("[aria-pressed=true]"); if (pressed) pressed.focus(); });
  }
  return {
    element: h("section", { "aria-label": "Charts over time" }, h("div", { class: "bar charts-head" }, h("h2", {}, "Over time"), buttons, h("span", { class: "soft" }, timeZone())), said, grid),
    start: fetchNow,
    async update() { if (Date.now() >= due) await fetchNow(); },
  };
}
