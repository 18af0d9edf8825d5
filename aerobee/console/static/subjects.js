// Parts of the pages of a topic and of a group: settings, offsets to choose, rebalances.

import { act } from "./action.js";
import { get } from "./api.js";
import { count, field, h, moment, table, timeZone } from "./parts.js";

export const PERMISSIONS = { 2: "write", 4: "read", 6: "read and write" };
const PERMISSION_WORDS = { w: "write", r: "read", rw: "read and write" };

// A value that differs from the default is bold.
export function changed(text, isChanged) {
  return isChanged ? h("strong", {}, text) : text;
}

const choice = (options, value = "") => h("select", {}, h("option", { value: "" }, "unchanged"), options.map(([key, text]) => h("option", { value: key, selected: key === value }, text)));
const switched = (select) => (select.value === "" ? undefined : select.value === "yes");
const YES_NO = [["yes", "yes"], ["no", "no"]];

export function topicForm(found, done) {
  const queues = h("input", { type: "number", min: "1", max: "1024", value: "" });
  const permission = choice(Object.entries(PERMISSION_WORDS));
  const ordered = choice(YES_NO);
  return h("div", { class: "bar" }, field("Queues at each broker", queues), field("Permission", permission), field("Ordered", ordered),
    act("admin", "Preview", `Change topic ${found.name}`, "topic-update", () => ({ topic: found.name, queues: queues.value, perm: permission.value, order: switched(ordered) }), { done }));
}

export function groupSettings(found, done) {
  const retries = h("input", { type: "number", min: "-1", max: "10000", value: "" });
  const consume = choice(YES_NO);
  const broadcast = choice(YES_NO);
  const orderly = choice(YES_NO);
  const yes = (value, normal) => changed(value ? "yes" : "no", value !== normal);
  return h("div", {}, table("Settings at each broker; those that differ from the default are bold", [
    ["Broker", (row) => row.broker], ["Retries", (row) => changed(row.retries, row.retries !== 16), "number"], ["Retry queues", (row) => changed(row.retry_queues, row.retry_queues !== 1), "number"],
    ["May consume", (row) => yes(row.consume, true)], ["May broadcast", (row) => yes(row.broadcast, true)], ["POP in order", (row) => yes(row.orderly, false)],
  ], found.settings, "No broker has settings of this group."),
  h("div", { class: "bar" }, field("Retries", retries), field("May consume", consume), field("May broadcast", broadcast), field("POP in order", orderly),
    act("admin", "Change", `Change group ${found.name}`, "group-update", () => ({
      group: found.name, retries: retries.value, consume: switched(consume), broadcast: switched(broadcast), orderly: switched(orderly),
    }), { done })));
}

const TARGETS = [
  ["earliest", "earliest message"], ["latest", "latest: skip the lag"], ["time", "a time"], ["ago", "a time ago"], ["offset", "an offset"], ["relative", "relative to the committed offset"],
];

// Where a group's offsets are reset to; value() is the text that the command line takes.
export function offsetPicker() {
  const to = h("select", { onchange: () => fit() }, TARGETS.map(([value, text]) => h("option", { value }, text)));
  const time = h("input", { type: "datetime-local", step: "1" });
  const span = h("input", { type: "text", value: "15m", placeholder: "90s, 15m, 2h, 1d" });
  const number = h("input", { type: "number", value: "0" });
  const fields = { time: field(`Time (${timeZone()})`, time), ago: field("Ago", span), offset: field("Offset", number) };
  const fit = () => { for (const [name, each] of Object.entries(fields)) each.hidden = !(name === to.value || (name === "offset" && to.value === "relative")); };
  fit();
  const value = () => ({
    time: () => (time.value ? new Date(time.value).toISOString() : ""), ago: () => span.value.trim(), offset: () => `offset:${number.value}`,
    relative: () => (Number(number.value) < 0 ? number.value : `+${number.value}`),
  }[to.value] || (() => to.value))();
  return { element: [field("To", to), ...Object.values(fields)], value };
}

const names = (list) => (list.length ? h("ul", { class: "moves" }, list.map((each) => h("li", {}, each))) : "–");

// Who joined and left a group, and which queues moved, as the console has seen it.
export function rebalancesOf(group) {
  const element = h("div");
  return { element, async update() {
    const found = await get("rebalances", { group });
    element.replaceChildren(table(`Since the console began to read the group: ${count(found.total)}`, [
      ["Time", (row) => moment(row.at_ms)], ["Joined", (row) => names(row.joined)], ["Left", (row) => names(row.left)],
      ["Moved queues", (row) => h("div", {}, names(row.moves.map((each) => `${each.queue}: ${each.from || "no owner"} → ${each.to || "no owner"}`)), row.more ? `and ${count(row.more)} more` : null)],
      ["Members", (row) => row.members, "number"],
    ], found.rebalances, "No member joined or left and no queue moved since the console began to read the group."));
  } };
}
