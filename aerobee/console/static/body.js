// A message with its body as JSON, text, MessagePack, CBOR, Protobuf or bytes.

import { cbor, messagePack, pretty, protobuf } from "./binary.js";
import { count, counted, h, link, moment } from "./parts.js";

// Retry and dead-letter topics of a group.
const OF_A_GROUP = /^%(?:RETRY|DLQ)%(.+)$/;

function why(message) {
  const [, group = ""] = OF_A_GROUP.exec(message.topic) || [];
  return link("why", "why", { message: message.message_id, group, topic: group ? "" : message.topic });
}

export function bytesOf(message) {
  return Uint8Array.from(atob(message.body), (character) => character.charCodeAt(0));
}

// The body as text; null if it is not UTF-8, or has control characters, as binary formats do.
export function textOf(message) {
  try {
    const text = new TextDecoder("utf-8", { fatal: !message.is_cut }).decode(bytesOf(message));
    return /[\u0000-\u0008\u000e-\u001f\u007f]/.test(text) ? null : text;
  } catch { return null; }
}

// Names that RocketMQ's clients and brokers set; the others are the user's.
const SYSTEM = /^(KEYS|TAGS|WAIT|DELAY|RETRY_TOPIC|REAL_TOPIC|REAL_QID|TRAN_MSG|PGROUP|MIN_OFFSET|MAX_OFFSET|BUYER_ID|ORIGIN_MESSAGE_ID|TRANSFER_FLAG|CORRECTION_FLAG|MQ2_FLAG|RECONSUME_TIME|MSG_REGION|TRACE_ON|UNIQ_KEY|EXTEND_UNIQ_INFO|MAX_RECONSUME_TIMES|CONSUME_START_TIME|INSTANCE_ID|CORRELATION_ID|REPLY_TO_CLIENT|TTL|ARRIVE_TIME|PUSH_REPLY_TIME|CLUSTER|MSG_TYPE|POP_CK|POP_CK_OFFSET|1ST_POP_TIME|BORN_TIMESTAMP|BORN_HOST|DLQ_.*|DUP_INFO|INNER_.*|TIMER_.*|__.*|__CRC32#|AEROBEE_.*|%.*)$/;

export function userProperties(message) {
  return Object.fromEntries(Object.entries(message.properties).filter(([name]) => !SYSTEM.test(name)));
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

function viewsOf(message, bytes) {
  const views = message.decoded ? [[message.decoded.format, message.decoded.text]] : [];
  const text = textOf(message);
  if (text !== null) {
    try { views.push(["JSON", JSON.stringify(JSON.parse(text), null, 2)]); } catch { /* not JSON: text is shown */ }
    views.push(["Text", text]);
  } else if (!message.is_cut) {
    for (const [name, decode] of message.decoded ? [] : [["MessagePack", messagePack], ["CBOR", cbor], ["Protobuf", protobuf]]) {
      try { views.push([name, pretty(decode(bytes))]); } catch { /* another format */ }
    }
  }
  views.push(["Hex", hex(bytes)]);
  return views;
}

// `actions`: buttons for the message.
export function messageCard(message, actions = []) {
  const bytes = bytesOf(message);
  const views = viewsOf(message, bytes);
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
    h("p", { class: "bar" }, `Body: ${counted(message.body_bytes, "byte")}${message.is_cut ? `, showing the first ${count(bytes.length)}` : ""}${message.is_masked ? ", fields hidden" : ""}`, buttons),
    pre,
    actions.length ? h("p", { class: "bar" }, actions) : "");
}
