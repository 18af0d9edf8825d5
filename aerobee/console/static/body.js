// A message with its body as JSON, text or bytes.

import { counted, h, link, moment } from "./parts.js";

// Retry and dead-letter topics of a group.
const OF_A_GROUP = /^%(?:RETRY|DLQ)%(.+)$/;

function why(message) {
  const [, group = ""] = OF_A_GROUP.exec(message.topic) || [];
  return link("why", "why", { message: message.message_id, group, topic: group ? "" : message.topic });
}

function bytesOf(message) {
  return Uint8Array.from(atob(message.body), (character) => character.charCodeAt(0));
}

function hex(bytes) {
  const lines = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const part = [...bytes.slice(at, at + 16)];
    const digits = part.map((byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(47);
    const text = part.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${digits}  ${text}`);
  }
  return lines.join("\n");
}

function viewsOf(bytes) {
  const views = [];
  let text = null;
  try { text = new TextDecoder("utf-8", { fatal: true }).decode(bytes); } catch { /* not text: bytes are shown */ }
  if (text !== null) {
    try { views.push(["JSON", JSON.stringify(JSON.parse(text), null, 2)]); } catch { /* not JSON: text is shown */ }
    views.push(["Text", text]);
  }
  views.push(["Hex", hex(bytes)]);
  return views;
}

export function messageCard(message) {
  const bytes = bytesOf(message);
  const views = viewsOf(bytes);
  const pre = h("pre", { tabindex: "0", "aria-label": "Body of the message" }, views[0][1]);
  const buttons = views.map(([name, text], place) => h("button", { type: "button", "aria-pressed": String(place === 0), onclick: (event) => {
    pre.textContent = text;
    for (const each of buttons) each.setAttribute("aria-pressed", String(each === event.currentTarget));
  } }, name));
  const facts = [
    ["Topic", link(message.topic, "topic", { name: message.topic })],
    ["Position", `${message.broker} / queue ${message.queue_id} / offset ${message.queue_offset}`],
    ["Id", h("code", {}, message.message_id)],
    ["Stored", `${moment(message.store_timestamp)} from ${message.born_host}`],
    ["Tag and keys", [message.tag, ...message.keys].filter(Boolean).join(" · ") || "–"],
    ["Earlier deliveries", String(message.reconsume_times)],
    ["See also", [link("trace", "trace", { id: message.message_id }), " · ", why(message)]],
  ];
  const properties = Object.entries(message.properties);
  return h("article", { class: "card message" },
    h("dl", {}, facts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    h("details", {}, h("summary", {}, `${counted(properties.length, "property", "properties")}`), h("dl", {}, properties.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]))),
    message.damage ? h("p", { class: "bad" }, `Damaged, shown as stored: ${message.damage}`) : "",
    h("p", { class: "bar" }, `Body: ${counted(message.body_bytes, "byte")}${message.is_cut ? ", showing the first 65,536" : ""}`, buttons),
    pre);
}
