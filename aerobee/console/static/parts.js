// Building blocks of pages. Untrusted text becomes text nodes only, never markup.

import { get } from "./api.js";

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  append(element, children);
  return element;
}

export function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

export function count(value) {
  return value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en");
}

export function counted(value, noun, nouns = `${noun}s`) {
  return `${count(value)} ${value === 1 ? noun : nouns}`;
}

export function rate(value) {
  if (value === null || value === undefined) return "–";
  return `${value >= 100 ? count(value) : value.toFixed(1)}/s`;
}

export function span(ms) {
  if (ms === null || ms === undefined) return "–";
  const seconds = ms / 1000;
  if (seconds < 1) return `${Math.round(ms)} ms`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

// A number with its unit, short enough for an axis; `exact`: with more digits.
export function number(value, unit, exact = false) {
  if (value === null || value === undefined) return "–";
  if (unit === "bytes") {
    let at = 0;
    let left = value;
    while (left >= 1024 && at < 4) { left /= 1024; at += 1; }
    return `${at === 0 ? Math.round(left) : left.toFixed(exact ? 1 : 0)} ${["B", "KiB", "MiB", "GiB", "TiB"][at]}`;
  }
  if (unit === "ms" && value >= 1000 && !exact) return value < 600_000 ? `${trimmed(value / 1000)} s` : value < 14_400_000 ? `${trimmed(value / 60_000)} min` : `${trimmed(value / 3_600_000)} h`;
  if (unit === "ms") return value >= 1000 ? span(value) : `${value >= 10 || Number.isInteger(value) ? Math.round(value) : value.toFixed(exact ? 2 : 1)} ms`;
  if (unit === "%") return `${value >= 10 || Number.isInteger(value) ? Math.round(value) : value.toFixed(1)} %`;
  const short = exact ? (value >= 100 || Number.isInteger(value) ? count(value) : value.toFixed(1))
    : value >= 1e9 ? `${trimmed(value / 1e9)} G` : value >= 1e6 ? `${trimmed(value / 1e6)} M` : value >= 1e4 ? `${trimmed(value / 1e3)} k` : trimmed(value);
  return unit === "/s" ? `${short}/s` : short;
}

function trimmed(value) {
  return String(Number(value.toFixed(value < 10 ? 1 : 0)));
}

// RocketMQ writes "V5_5_0".
export function version(text) {
  const found = /^V(\d+)_(\d+)_(\d+)(.*)$/.exec(text || "");
  return found ? `${found[1]}.${found[2]}.${found[3]}${found[4].replaceAll("_", "-").toLowerCase()}` : text;
}

export function moment(ms) {
  if (!ms || ms < 0) return "–";
  const local = new Date(ms - new Date(ms).getTimezoneOffset() * 60000);
  return local.toISOString().replace("T", " ").slice(0, 23);
}

// A time that a person typed, in the time zone in which moment() shows times, as an unambiguous moment; other text as it is.
export function typedMoment(text) {
  const found = /^\s*(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d(?:\.\d+)?)?))?\s*$/.exec(text);
  if (!found) return text;
  const local = new Date(`${found[1]}T${found[2] || "00:00"}`);
  return Number.isNaN(local.getTime()) ? text : local.toISOString();
}

export function timeZone() {
  return Intl.DateTimeFormat().resolvedOptions().timeZone || "this browser's time zone";
}

// Colour and meaning of each lag state; those that are not here are red.
const STATES = {
  OK: ["good", ""], WARN: ["warn", "lag grows"], STALL: ["bad", "does not advance"], STOP: ["bad", "no consumer"], REWIND: ["warn", "moved back"],
  BLOCKED: ["bad", "queue locked"], MISMATCH: ["bad", "subscriptions differ"], UNKNOWN: ["soft", "observed too briefly"],
};

export function state(value, reason) {
  const [kind, words] = STATES[value] || ["bad", ""];
  return h("span", { class: `state ${kind}`, title: reason || null }, value, words ? h("span", { class: "soft words" }, ` ${words}`) : null);
}

// How each table is sorted and filtered, by its caption without numbers: kept while a page is drawn again.
const sorted = new Map();
const narrowed = new Map();
const UNSORTED = new Set(["Change", "Select"]);
const FILTERED_ROWS = 8; // a table with as many rows has a filter
const SHORT = 24; // characters of a cell that is not wrapped

// columns: [title, row => content, "number"?, row => value to sort by?, name of the order at the server?]. Without the value the text of the
// cell is compared. `remote`: { sort, way, set } of a list that the server sorts and filters.
export function table(caption, columns, rows, empty, remote = null) {
  if (!rows.length) return h("p", { class: "soft" }, empty || "None.");
  const key = `${location.hash.split("?")[0]} ${caption.replace(/[\d,]+/g, "#")}`;
  const body = h("tbody", { role: "rowgroup" });
  const lines = rows.map((row, at) => ({ row, at, element: h("tr", { role: "row" }, columns.map(([title, cell, kind]) => {
    const element = h("td", { role: "cell", class: kind, "data-title": title }, cell(row));
    if (element.textContent.length <= SHORT && !element.querySelector(".bar")) element.classList.add("short");
    return element;
  })) }));
  const isSortable = (title, order) => title && rows.length > 1 && !UNSORTED.has(title) && (!remote || order);
  const turn = (at, order) => {
    if (remote) { remote.set(...nextOrder(remote, order)); return; }
    sorted.set(key, next(sorted.get(key), at));
    arrange();
  };
  const heads = columns.map(([title, , kind, , order], at) => h("th", { scope: "col", role: "columnheader", class: kind }, isSortable(title, order)
    ? h("button", { type: "button", class: "sort", onclick: () => turn(at, order) }, title) : title));
  const value = (line, at) => (columns[at][3] ? columns[at][3](line.row) : sortable(line.element.children[at].textContent, columns[at][2] === "number"));
  function arrange() {
    const [at, way] = remote ? [columns.findIndex((column) => column[4] && column[4] === remote.sort), remote.way === "down" ? -1 : 1] : sorted.get(key) || [-1, 0];
    const wanted = remote ? "" : (narrowed.get(key) || "").toLowerCase();
    const shown = wanted ? lines.filter((line) => line.element.textContent.toLowerCase().includes(wanted)) : lines;
    const order = remote || at < 0 || at >= columns.length ? shown : [...shown].sort((one, other) => way * compare(value(one, at), value(other, at)) || one.at - other.at);
    heads.forEach((head, which) => { if (which === at) head.setAttribute("aria-sort", way > 0 ? "ascending" : "descending"); else head.removeAttribute("aria-sort"); });
    body.replaceChildren(...order.map((line) => line.element));
    matches.textContent = wanted ? `${count(shown.length)} of ${count(lines.length)}` : "";
  }
  const matches = h("span", { class: "soft", role: "status" });
  const input = h("input", { type: "search", value: narrowed.get(key) || "", placeholder: "Filter rows", "aria-label": `Show rows of ${caption} with`, oninput: () => { narrowed.set(key, input.value.trim()); arrange(); } });
  arrange();
  const region = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", { role: "table", class: "rows" }, h("caption", {}, caption), h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, heads)), body));
  return remote || rows.length < FILTERED_ROWS ? region : h("div", {}, h("div", { class: "bar narrow" }, input, matches), region);
}

function nextOrder({ sort, way }, order) {
  if (sort !== order) return [order, "down"];
  return way === "down" ? [order, "up"] : ["", ""];
}

// Down, up, and then the order of the page again.
function next(now, at) {
  if (!now || now[0] !== at) return [at, -1];
  return now[1] < 0 ? [at, 1] : [-1, 0];
}

const UNITS = { ms: 1, s: 1000, min: 60_000, h: 3_600_000, d: 86_400_000, B: 1, KiB: 1024, MiB: 1024 ** 2, GiB: 1024 ** 3, TiB: 1024 ** 4 };

// The size of "1,204", "3.5 KiB" or "2 min 4 s"; -1 for no number, so that unknown values come last.
function sortable(text, isNumber) {
  if (!isNumber) return text.toLowerCase();
  const parts = [...text.replaceAll(",", "").matchAll(/(-?[\d.]+)\s*([A-Za-z]+)?/g)];
  return parts.length ? parts.reduce((sum, [, digits, unit]) => sum + Number(digits) * (UNITS[unit] || 1), 0) : -1;
}

function compare(one, other) {
  if (typeof one === "number" && typeof other === "number") return one - other;
  return String(one).localeCompare(String(other), "en", { numeric: true });
}

export function tiles(...pairs) {
  return h("dl", { class: "tiles" }, pairs.map(([title, value, kind]) => h("div", {}, h("dt", {}, title), h("dd", { class: kind }, value))));
}

export function field(title, input) {
  if (input.tagName === "SELECT") input.setAttribute("aria-label", title); // the label's text has the options, too
  return h("label", {}, title, input);
}

export function link(text, page, parameters = {}) {
  return h("a", { href: route(page, parameters) }, text);
}

export function route(page, parameters = {}) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value)).toString();
  return `#/${page}${query ? `?${query}` : ""}`;
}

let pickers = 0;

// A text field that suggests the names of topics or groups as the user types.
export function picker(kind, value = "", { title = kind === "topics" ? "Topic" : "Group", required = null } = {}) {
  pickers += 1;
  const list = h("datalist", { id: `picker-${pickers}` });
  let typing = 0;
  const suggest = () => {
    clearTimeout(typing);
    typing = setTimeout(async () => {
      try { list.replaceChildren(...(await get(kind, { filter: input.value.trim(), count: 20 })).rows.map((row) => h("option", { value: row.name }))); } catch { /* the field takes any name */ }
    }, 150);
  };
  const input = h("input", { type: "text", value, required, list: list.id, autocomplete: "off", oninput: suggest, onfocus: suggest });
  return { element: h("div", {}, field(title, input), list), input };
}

export function failure(error) {
  return h("p", { class: "error", role: "alert" }, error.message || String(error));
}

let clearing = 0;
export function say(text) {
  const status = document.getElementById("status");
  status.textContent = text;
  clearTimeout(clearing);
  clearing = setTimeout(() => { status.textContent = ""; }, 5000);
}

export function command(text) {
  const copy = h("button", { type: "button", onclick: async () => {
    try { await navigator.clipboard.writeText(text); say("copied"); } catch { say("the browser does not allow copying"); }
  } }, "Copy");
  return h("div", { class: "command" }, h("pre", { tabindex: "0", "aria-label": "Equivalent command" }, text), copy);
}

// A list that the server sends in pages of a hundred rows, with a filter and buttons for the previous and next page.
export async function paged(title, ask, draw, initial = "") {
  let offset = 0;
  let asked = 0;
  const place = h("div");
  const where = h("p", { class: "soft", role: "status" });
  const turn = (text, by) => h("button", { type: "button", onclick: () => { offset = Math.max(0, offset + by); redraw(); } }, text);
  const back = turn("Previous", -PAGE_ROWS);
  const on = turn("Next", PAGE_ROWS);
  let order = { sort: "", way: "" };
  let typing = 0;
  const input = h("input", { type: "search", value: initial, oninput: () => { offset = 0; clearTimeout(typing); typing = setTimeout(redraw, 150); } });
  const redraw = async () => {
    asked += 1;
    const mine = asked;
    try {
      const found = await ask({ filter: input.value.trim(), offset, count: PAGE_ROWS, ...order });
      if (mine !== asked) return; // the late reply to an older request
      if (offset >= found.total && offset > 0) { offset = 0; redraw(); return; }
      place.replaceChildren(draw(found.rows, found.total, { ...order, set: (sort, way) => { order = { sort, way }; offset = 0; redraw(); } }));
      where.textContent = found.total > found.rows.length ? `${count(offset + 1)} to ${count(offset + found.rows.length)} of ${count(found.total)}` : "";
      back.hidden = offset === 0;
      on.hidden = offset + found.rows.length >= found.total;
    } catch (error) { if (mine === asked) place.replaceChildren(failure(error)); }
  };
  await redraw();
  return { element: h("div", {}, h("div", { class: "bar" }, field(title, input), back, on, where), place), update: redraw };
}
const PAGE_ROWS = 100;
