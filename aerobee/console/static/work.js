// Pages with changes: dead letters, transactions, timers, schedules, settings, send and watch.

import { act } from "./action.js";
import { get } from "./api.js";
import { messageCard, textOf } from "./body.js";
import { liveButton, rowsOf } from "./messages.js";
import { count, counted, failure, field, h, link, moment, picker, span, table, timeZone } from "./parts.js";

export async function dlq(parameters, place) {
  if (parameters.group) return deadLetters(parameters.group, place);
  const { groups } = await get("dlq");
  place.replaceChildren(h("h1", {}, "Dead letters"), table("Groups with dead-letter messages", [
    ["Group", (row) => link(row.group, "dlq", { group: row.group })], ["Dead letters", (row) => count(row.dead_letters), "number"], ["Not redriven", (row) => count(row.waiting), "number"],
    ["Change", (row) => act("operator", "Redrive", `Redrive dead letters of ${row.group}`, "redrive", { group: row.group })],
  ], groups, "There are no dead-letter messages."));
  return undefined;
}

async function deadLetters(group, place) {
  const found = await get("dead-letters", { group });
  const chosen = new Set();
  const all = h("input", { type: "checkbox", onchange: () => {
    for (const box of place.querySelectorAll("tbody input[type=checkbox]")) if (box.checked !== all.checked) box.click();
  } });
  const boxes = (row) => h("input", { type: "checkbox", "aria-label": `select ${row.message_id}`, onchange: (event) => (event.target.checked ? chosen.add(row.message_id) : chosen.delete(row.message_id)) });
  const detail = h("div");
  place.replaceChildren(
    h("h1", {}, `Dead letters of ${group}`),
    h("div", { class: "bar" },
      act("operator", "Redrive all", `Redrive dead letters of ${group}`, "redrive", { group }),
      act("operator", "Redrive selected", `Redrive selected dead letters of ${group}`, "redrive", () => ({ group, ids: [...chosen] })),
      field("Select all", all), link("All groups", "dlq")),
    table(`${counted(found.dead_letters.length, "message")}${found.is_cut ? " (the oldest)" : ""}`, [
      ["Select", boxes], ["Died", (row) => moment(row.died_ms)], ["Topic", (row) => row.topic || "–"], ["Reason", (row) => row.reason || "–"], ["Last error", (row) => row.error || "–"], ["Tries", (row) => row.tries, "number"],
      ["Body", (row) => { const text = textOf(row.message); return h("span", { class: "preview" }, text === null ? counted(row.message.body_bytes, "byte") : text.slice(0, 120)); }],
      ["Message", (row) => h("button", { type: "button", onclick: () => { detail.replaceChildren(h("h2", {}, "Message"), messageCard(row.message)); detail.scrollIntoView(); }, "aria-label": `Show ${row.message_id}`, title: row.message_id }, "Show")],
    ], found.dead_letters, "The group has no dead-letter messages."),
    detail,
  );
}

export async function transactions(parameters, place) {
  const chosen = parameters.state || "open";
  const found = await get("transactions", { state: chosen });
  const again = () => transactions(parameters, place);
  const button = (row, action, text) => act("operator", text, `${text} transaction ${row.id}`, "transaction", { id: row.id, action }, { danger: action === "rollback", done: again });
  place.replaceChildren(
    h("h1", {}, "Transactions"),
    h("div", { class: "bar" }, link("Open", "transactions", { state: "open" }), link("Given up", "transactions", { state: "given-up" })),
    found.unsupported ? failure(new Error(found.unsupported)) : table(`${count(found.total)} ${chosen === "open" ? "open" : "given up"}, oldest first`, [
      ["Transaction", (row) => h("code", {}, row.id)], ["Producer group", (row) => row.group], ["Topic", (row) => row.topic], ["Age", (row) => span(row.age_ms), "number"],
      ["Checks", (row) => `${row.checks} of ${row.checks_max}`, "number"], ["Producers online", (row) => row.producers, "number"], ["Keys", (row) => row.keys.join(" ") || "–"],
      ["Change", (row) => h("div", { class: "bar" }, button(row, "commit", "Commit"), button(row, "rollback", "Roll back"), button(row, "check", "Check"))],
    ], found.transactions, chosen === "open" ? "No transaction is open." : "No transaction was given up."),
  );
}

export async function timers(parameters, place) {
  const found = await get("timers", { topic: parameters.topic });
  const again = () => timers(parameters, place);
  const after = h("input", { type: "text", value: "15m", "aria-describedby": "after-help" });
  place.replaceChildren(
    h("h1", {}, "Timers"),
    found.unsupported ? failure(new Error(found.unsupported)) : h("div", {}, h("p", {}, `${counted(found.pending, "pending message")}.`), table("By delivery time", [
      ["Due", (row) => moment(row.due_ms)], ["Due in", (row) => span(Math.max(0, row.in_ms)), "number"], ["Topic", (row) => link(row.topic, "topic", { name: row.topic })], ["Message id", (row) => h("code", {}, row.id)],
      ["Keys", (row) => row.keys.join(" ") || "–"], ["Body bytes", (row) => count(row.body_bytes), "number"],
      ["Change", (row) => (row.handle ? h("div", { class: "bar" },
        act("operator", "Reschedule", "Reschedule a message", "reschedule", () => ({ handle: row.handle, after: after.value }), { done: again }),
        act("operator", "Recall", "Recall a message", "recall", { handle: row.handle }, { danger: true, done: again })) : "no handle")],
    ], found.timers, "No message is pending."),
    h("div", { class: "bar" }, field("Reschedule: deliver in", after)), h("p", { id: "after-help", class: "soft" }, "90s, 15m, 2h from now; 0s: immediately")),
  );
}

export async function schedules(parameters, place) {
  const found = await get("schedules");
  const again = () => schedules(parameters, place);
  const name = h("input", { type: "text", required: true });
  const topic = picker("topics", parameters.topic, { required: true });
  const body = h("input", { type: "text", required: true });
  const cron = h("input", { type: "text", placeholder: "0 6 * * 1-5", "aria-describedby": "ticks-help" });
  const zone = h("input", { type: "text", value: "UTC", list: "zones" });
  const every = h("input", { type: "text", placeholder: "15m", "aria-describedby": "ticks-help" });
  const change = (row, action, text, options = {}) => act("operator", text, `${text} schedule ${row.name}`, "schedule-change", { name: row.name, action }, { ...options, done: again });
  place.replaceChildren(h("h1", {}, "Schedules"),
    ...(found.unsupported ? [failure(new Error(found.unsupported))] : [
      table(counted(found.total, "schedule"), [
        ["Name", (row) => h("code", {}, row.name)], ["Topic", (row) => link(row.topic, "topic", { name: row.topic })], ["Ticks", (row) => row.ticks],
        ["State", (row) => h("span", { class: row.state === "active" ? "good" : row.state === "failing" ? "bad" : "soft", title: row.trouble }, row.state)],
        ["Next", (row) => (row.next_ticks.length ? h("span", { title: row.next_ticks.map(moment).join("\n") }, moment(row.next_ticks[0])) : "–")],
        ["Due in", (row) => (row.in_ms === null ? "–" : span(row.in_ms)), "number"], ["Delivered", (row) => count(row.delivered), "number"],
        ["Change", (row) => h("div", { class: "bar" }, h("button", { type: "button", onclick: () => showTicks(row), "aria-label": `Next ticks of ${row.name}` }, "Next ticks"),
          row.state === "paused" ? change(row, "resume", "Resume") : change(row, "pause", "Pause"), change(row, "delete", "Delete", { danger: true, confirm: row.name }))],
      ], found.schedules, "There are no schedules."),
      h("div", { id: "ticks" }),
      h("h2", {}, "Create a schedule"),
      h("div", { class: "bar" }, field("Name", name), topic.element, field("Body", body)),
      h("div", { class: "bar" }, field("Cron", cron), field("Time zone", zone), h("datalist", { id: "zones" }, Intl.supportedValuesOf("timeZone").map((each) => h("option", { value: each }))), field("Or every", every),
        act("operator", "Create", "Create a schedule", "schedule-create", () => ({ name: name.value, topic: topic.input.value, body: body.value, cron: cron.value, time_zone: zone.value, every: every.value }), { done: again })),
      h("p", { id: "ticks-help", class: "soft" }, "Cron: minute, hour, day of month, month, day of week; six fields start with the second. Every: 30s, 15m, 1h30m. The page shows times in ", timeZone(), ".")]));

  function showTicks(row) {
    place.querySelector("#ticks").replaceChildren(h("h2", {}, `Next ticks of ${row.name}`), row.next_ticks.length
      ? h("ol", {}, row.next_ticks.map((tick) => h("li", {}, moment(tick)))) : h("p", {}, "The console cannot read the expression; `aerobee schedule next` can, where cronsim is installed."));
  }
}

export async function send(parameters, place) {
  const topic = picker("topics", parameters.topic, { required: true });
  const topicInput = topic.input;
  const tag = h("input", { type: "text" });
  const keys = h("input", { type: "text" });
  const body = h("textarea", {});
  const said = h("p", { class: "soft", role: "status" });
  const rows = rowsOf(() => topicInput.value.trim());
  const live = liveButton(() => topicInput.value.trim(), rows, said, "Watch the topic");
  place.replaceChildren(h("h1", {}, "Send and watch"),
    h("div", { class: "bar" }, topic.element, field("Tag", tag), field("Keys", keys)),
    h("div", { class: "bar" }, field("Body", body)),
    h("div", { class: "bar" }, act("operator", "Send", "Send a message", "send", () => ({ topic: topicInput.value, tag: tag.value, keys: keys.value, body: body.value })), live.button),
    h("h2", {}, "New messages"), said, rows.element);
  rows.set([]);
  return { leave: live.stop };
}
