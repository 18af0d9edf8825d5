// The message browser: newest first, by queue, offset or time, with filters at the broker, live rows, download, and sending again.

import { show } from "./action.js";
import { get, may, path as pathOf } from "./api.js";
import { bytesOf, messageCard, textOf, userProperties } from "./body.js";
import { count, counted, failure, field, h, moment, number, picker, route, say, typedMoment } from "./parts.js";

const LIVE_ROWS = 200;
const ORDERS = [["newest", "newest first"], ["oldest", "oldest first"], ["offset", "from offset"], ["time", "from time"], ["key", "with key"], ["id", "with id"]];
const FILTERS = [["", "none"], ["tag", "tag"], ["sql", "SQL92"], ["property", "property"], ["text", "text in body"]];
const HINTS = { tag: "A || B", sql: "region = 'EU' AND price > 5", property: "name or name=value", text: "text" };
const COLUMNS = {
  time: ["Stored at", (message) => moment(message.store_timestamp)],
  queue: ["Queue", (message) => `${message.broker}/${message.queue_id}`],
  offset: ["Offset", (message) => message.queue_offset, "number"],
  key: ["Keys", (message) => message.keys.join(" ") || "–"],
  tag: ["Tag", (message) => message.tag || "–"],
  properties: ["Properties", (message) => Object.entries(userProperties(message)).map((pair) => pair.join("=")).join(", ") || "–"],
  size: ["Body bytes", (message) => number(message.body_bytes, "bytes", true), "number"],
  id: ["Message id", (message) => h("code", {}, message.message_id)],
  body: ["Body", (message) => h("span", { class: "preview" }, preview(message))],
};

let columns = innerWidth < 760 ? ["time", "body"] : ["time", "queue", "offset", "key", "tag", "body"];
try { const kept = JSON.parse(localStorage.getItem("columns")); if (Array.isArray(kept) && kept.length) columns = kept.filter((name) => name in COLUMNS); } catch { /* no choice is kept, or storage is forbidden */ }

function preview(message) {
  const text = textOf(message);
  return text === null ? counted(message.body_bytes, "byte") : text.slice(0, 160);
}

// The value at a path such as $.lines[0].name, of a body that is JSON.
export function atPath(message, path) {
  const steps = path.replace(/^\$\.?/, "").match(/[^.[\]]+/g) || [];
  try {
    let value = JSON.parse(textOf(message));
    for (const step of steps) value = value !== null && typeof value === "object" && Object.hasOwn(value, step) ? value[step] : undefined;
    return value === undefined ? "–" : typeof value === "string" ? value : JSON.stringify(value);
  } catch { return "–"; }
}

// Rows that open to the whole message. `add` takes messages in the order of the page, or live ones in front.
export function rowsOf(topic) {
  let path = "";
  let messages = [];
  const head = h("tr", { role: "row" });
  const body = h("tbody", { role: "rowgroup" });
  const caption = h("caption", {}, "");
  const element = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Messages" }, h("table", { role: "table", class: "messages rows" }, caption, h("thead", { role: "rowgroup" }, head), body));
  const shownColumns = () => [...columns.map((name) => COLUMNS[name]), ...(path ? [[path, (message) => atPath(message, path)]] : [])];

  function row(message, isOpen) {
    const detail = h("tr", { role: "row", class: "detail", hidden: !isOpen });
    const fill = () => { if (!detail.childNodes.length) detail.append(h("td", { role: "cell", colspan: shownColumns().length + 1 }, messageCard(message, actionsOf(message, topic())))); };
    const open = h("button", { type: "button", class: "plain", "aria-expanded": String(Boolean(isOpen)), "aria-label": `Offset ${message.queue_offset} of queue ${message.queue_id}`, onclick: () => {
      fill();
      detail.hidden = !detail.hidden;
      open.setAttribute("aria-expanded", String(!detail.hidden));
    } }, "▸");
    if (isOpen) fill();
    return [h("tr", { role: "row" }, h("td", { role: "cell" }, open), shownColumns().map(([title, cell, kind]) => h("td", { role: "cell", class: kind, "data-title": title }, cell(message)))), detail];
  }
  function redraw() {
    head.replaceChildren(h("th", { scope: "col", role: "columnheader" }, h("span", { class: "hidden" }, "Open")), ...shownColumns().map(([title, , kind]) => h("th", { scope: "col", role: "columnheader", class: kind }, title)));
    body.replaceChildren(...messages.flatMap((message) => row(message, messages.length <= 2)));
    caption.textContent = counted(messages.length, "message");
  }
  return {
    element,
    get messages() { return messages; },
    set(next) { messages = next; redraw(); },
    more(next) { messages = messages.concat(next); body.append(...next.flatMap((message) => row(message, false))); caption.textContent = counted(messages.length, "message"); },
    live(news) {
      messages = [...news].reverse().concat(messages).slice(0, LIVE_ROWS);
      body.prepend(...[...news].reverse().flatMap((message) => row(message, false)));
      while (body.children.length > 2 * LIVE_ROWS) body.lastChild.remove();
      caption.textContent = `${counted(messages.length, "message")}, the newest first`;
    },
    path(next) { path = next; redraw(); },
    redraw,
  };
}

function quotedWord(word) {
  return /^[\w.:/@%+=,-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

function actionsOf(message, topic) {
  const words = ["aerobee", "consume", topic, "--queue", `${message.broker}/${message.queue_id}`, "--from", `offset:${message.queue_offset}`, "--count", "1", "--json"];
  return [
    h("button", { type: "button", onclick: async () => {
      try { await navigator.clipboard.writeText(words.map(quotedWord).join(" ")); say("copied"); } catch { say("the browser does not allow copying"); }
    } }, "Copy as command"),
    h("button", { type: "button", disabled: !may("operator") || message.is_masked, title: message.is_masked ? "fields of this body are hidden" : may("operator") ? null : "requires the role operator", onclick: () => sendAgain(message) }, "Send again …"),
  ];
}

// A dialog with the message's fields, then the preview of the send, which asks for the confirmation.
async function sendAgain(message) {
  const whole = message.is_cut ? (await get("message", { topic: message.queue_topic || message.topic, queue: `${message.broker}/${message.queue_id}`, offset: message.queue_offset })).message : message;
  const text = textOf(whole);
  const dialog = document.getElementById("dialog");
  const topic = h("input", { type: "text", value: whole.topic, required: true });
  const tag = h("input", { type: "text", value: whole.tag || "" });
  const keys = h("input", { type: "text", value: whole.keys.join(" ") });
  const properties = h("textarea", { rows: "3", value: Object.entries(userProperties(whole)).map((pair) => pair.join("=")).join("\n") });
  const body = h("textarea", { rows: "8", value: text === null ? "" : text });
  const next = h("button", { type: "button", class: "main", onclick: () => {
    const pairs = properties.value.split("\n").filter((line) => line.trim()).map((line) => [line.slice(0, line.indexOf("=")).trim(), line.slice(line.indexOf("=") + 1).trim()]);
    dialog.close();
    show("Send again", "send", { topic: topic.value, tag: tag.value, keys: keys.value, properties: Object.fromEntries(pairs), ...(text === null ? { body_base64: whole.body } : { body: body.value }) });
  } }, "Preview");
  dialog.replaceChildren(h("h2", { id: "dialog-title" }, "Send again"),
    h("p", {}, "The copy is a new message with its own id: every group of the topic receives it."),
    whole.is_cut ? failure(new Error("The body is larger than the console transfers: use aerobee consume and aerobee send.")) : "",
    h("div", { class: "bar" }, field("Topic", topic), field("Tag", tag), field("Keys", keys)),
    field("Properties, name=value in each line", properties),
    text === null ? h("p", { class: "soft" }, `The body is not text: its ${counted(whole.body_bytes, "byte")} are sent unchanged.`) : field("Body", body),
    h("div", { class: "bar" }, ...(whole.is_cut ? [] : [next]), h("button", { type: "button", onclick: () => dialog.close() }, "Close")));
  dialog.showModal();
}

function chooser(rows) {
  const box = (name) => h("label", { class: "row" }, h("input", { type: "checkbox", checked: columns.includes(name), onchange: (event) => {
    columns = Object.keys(COLUMNS).filter((each) => (each === name ? event.target.checked : columns.includes(each)));
    try { localStorage.setItem("columns", JSON.stringify(columns)); } catch { /* the choice lasts until the next load of the page */ }
    rows.redraw();
  } }), COLUMNS[name][0]);
  const path = h("input", { type: "text", placeholder: "$.order.total", onchange: () => rows.path(path.value.trim()) });
  return h("details", {}, h("summary", {}, "Columns"), h("div", { class: "bar" }, Object.keys(COLUMNS).map(box), field("JSON path", path)));
}

async function download(messages, topic) {
  const lines = [];
  for (const message of messages) {
    const whole = message.is_cut ? (await get("message", { topic, queue: `${message.broker}/${message.queue_id}`, offset: message.queue_offset })).message : message;
    const { body, is_cut: isCut, body_bytes: _, ...rest } = whole;
    const text = textOf(whole);
    lines.push(JSON.stringify({ ...rest, body: text === null ? [...bytesOf(whole)].map((byte) => byte.toString(16).padStart(2, "0")).join("") : text, encoding: text === null ? "hex" : "utf-8", ...(isCut ? { is_cut: true } : {}) }));
  }
  const url = URL.createObjectURL(new Blob([lines.map((line) => `${line}\n`).join("")], { type: "application/x-ndjson" }));
  const link = h("a", { href: url, download: `${topic}.jsonl` });
  link.click();
  URL.revokeObjectURL(url);
  say(`${counted(lines.length, "message")} saved`);
}

export async function messages(parameters, place) {
  const topic = parameters.topic || "";
  const topicInput = picker("topics", topic, { required: parameters.by === "id" ? null : true });
  const queue = h("select", {}, h("option", { value: "" }, "all queues"));
  const by = h("select", {}, ORDERS.map(([value, text]) => h("option", { value, selected: (parameters.by || "newest") === value }, text)));
  const what = h("input", { type: "text", value: parameters.what || "" });
  const whatField = field("What", what);
  const filter = h("select", {}, FILTERS.map(([value, text]) => h("option", { value, selected: (parameters.filter || "") === value }, text)));
  const value = h("input", { type: "text", value: parameters.value || "" });
  const valueField = field("Filter value", value);
  const fit = () => {
    whatField.hidden = by.value === "newest" || by.value === "oldest";
    valueField.hidden = !filter.value;
    what.placeholder = { time: "2026-11-21 10:00", offset: "120", key: "key", id: "message id" }[by.value] || "";
    value.placeholder = HINTS[filter.value] || "";
  };
  by.addEventListener("change", fit);
  filter.addEventListener("change", fit);
  fit();
  const found = h("div");
  const form = h("form", { onsubmit: (event) => {
    event.preventDefault();
    const next = route("messages", { topic: topicInput.input.value, queue: queue.value, by: by.value === "newest" ? "" : by.value, what: whatField.hidden ? "" : what.value, filter: filter.value, value: filter.value ? value.value : "" });
    if (location.hash === next) dispatchEvent(new Event("hashchange")); else location.hash = next;
  } }, topicInput.element, field("Queue", queue), field("Show", by), whatField, field("Filter", filter), valueField, h("button", { class: "main" }, "Find"));
  place.replaceChildren(h("h1", {}, "Messages"), form, found);
  if (!topic && !(parameters.by === "id" && parameters.what)) {
    found.append(h("p", { class: "soft" }, "Choose a topic to see its newest messages."));
    return undefined;
  }
  const rows = rowsOf(() => topic);
  if (parameters.by === "key" || parameters.by === "id") {
    const answer = await get("messages", { topic, [parameters.by]: parameters.what });
    rows.set(answer.messages);
    found.replaceChildren(tools(rows, topic, null), rows.element);
    return undefined;
  }
  const query = {
    topic, queue: parameters.queue, by: parameters.by || "newest", filter: parameters.filter, value: parameters.value,
    what: parameters.by === "time" ? String(new Date(typedMoment(parameters.what || "")).getTime()) : parameters.what,
  };
  const first = await get("browse", query);
  queue.append(...first.queues.map((each) => h("option", { value: each.name, selected: each.name === parameters.queue }, `${each.name} (${count(each.min_offset)} to ${count(each.max_offset)})`)));
  const said = h("p", { class: "soft", role: "status" });
  let cursor = first.cursor;
  const tell = (answer) => {
    cursor = answer.cursor;
    more.hidden = !cursor;
    said.textContent = [query.filter ? `${count(answer.scanned)} read, ${count(answer.messages.length)} match` : "", answer.note].filter(Boolean).join("; ");
  };
  const more = h("button", { type: "button", onclick: async () => {
    more.disabled = true;
    try { const answer = await get("browse", { ...query, cursor }); rows.more(answer.messages); tell(answer); } catch (error) { found.append(failure(error)); }
    more.disabled = false;
  } }, query.by === "newest" ? "Older messages" : "Next messages");
  rows.set(first.messages);
  tell(first);
  const live = query.by === "newest" && !query.filter && !query.queue ? liveButton(() => topic, rows, said) : null;
  found.replaceChildren(tools(rows, topic, live && live.button), rows.element, said, more);
  return { leave: () => { if (live) live.stop(); } };
}

function tools(rows, topic, live) {
  return h("div", { class: "bar tools" }, live, h("button", { type: "button", onclick: () => download(rows.messages, topic) }, "Download as JSON lines"), chooser(rows));
}

// New messages as rows in front. Events of one frame are drawn together, so that a thousand a second cost one redraw each frame.
export function liveButton(topic, rows, said, title = "Live") {
  let source = null, waiting = [], skipped = 0, frame = 0;
  const flush = () => { frame = 0; rows.live(waiting.slice(-LIVE_ROWS)); waiting = []; };
  const stop = () => {
    if (source) source.close();
    source = null;
    if (frame) cancelAnimationFrame(frame);
    frame = 0;
    button.textContent = title;
    button.setAttribute("aria-pressed", "false");
  };
  const button = h("button", { type: "button", "aria-pressed": "false", onclick: () => {
    if (source) { stop(); said.textContent = "Stopped."; return; }
    if (!topic()) { said.textContent = "Choose a topic first."; return; }
    source = new EventSource(pathOf("tail", { topic: topic() }));
    button.textContent = "Stop";
    button.setAttribute("aria-pressed", "true");
    said.textContent = "Reading the end offsets of the topic.";
    source.onmessage = (event) => {
      const news = JSON.parse(event.data);
      if (news.watching) said.textContent = "Live: new messages appear at the top.";
      if (news.error) said.textContent = news.error;
      if (news.passed) { skipped += news.passed; said.textContent = `Live; ${counted(skipped, "message")} skipped: the rate is too high to show all.`; }
      if (news.message) { waiting.push(news.message); if (waiting.length > LIVE_ROWS) waiting.shift(); if (!frame) frame = requestAnimationFrame(flush); }
    };
  } }, title);
  return { button, stop };
}
