// Read-only pages: overview, brokers, a broker, topics, groups, trace, why. Each is (parameters, element) -> update?

import { act } from "./action.js";
import { get } from "./api.js";
import { charts } from "./charts.js";
import { changed, groupSettings, offsetPicker, PERMISSIONS, rebalancesOf, topicForm } from "./subjects.js";
import { count, counted, failure, field, h, link, moment, number, paged, picker, rate, route, span, state, table, tiles, version } from "./parts.js";

// The last word is the name of the order at the server.
const topicColumns = [
  ["Topic", (row) => link(row.name, "topic", { name: row.name }), null, null, "name"],
  ["In", (row) => rate(row.rate), "number", null, "in"],
  ["Out", (row) => rate(row.out), "number", null, "out"],
  ["Messages", (row) => (row.is_known ? count(row.messages) : "–"), "number", null, "messages"],
  ["Queues", (row) => (row.is_known ? row.queues : "–"), "number", null, "queues"],
  ["Last message", (row) => moment(row.last_ms), null, null, "last"],
];
const groupColumns = [
  ["Group", (row) => link(row.name, "group", { name: row.name }), null, null, "name"],
  ["State", (row) => state(row.state, row.reason), null, null, "state"],
  ["Lag", (row) => count(row.lag), "number", null, "lag"],
  ["Lag time", (row) => span(row.late_ms), "number", null, "late"],
  ["Time to drain", (row) => (row.drain_s === null ? "–" : span(row.drain_s * 1000)), "number", null, "drain"],
  ["Out", (row) => rate(row.tps), "number", null, "out"],
  ["Members", (row) => row.members, "number", null, "members"],
];
const brokerColumns = [
  ["Broker", (row) => link(row.name, "broker", { address: row.address })],
  ["Role", (row) => row.role],
  ["Broker id", (row) => row.id, "number"],
  ["Address", (row) => row.address],
  ["State", (row) => (row.error ? h("span", { class: "bad" }, row.error) : h("span", { class: "good" }, "up"))],
  ["In", (row) => rate(row.in_tps), "number"],
  ["Out", (row) => rate(row.out_tps), "number"],
  ["Send p99", (row) => (row.put_p99_ms === null || row.put_p99_ms === undefined ? "–" : `${row.put_p99_ms.toFixed(2)} ms`), "number"],
  ["Disk", (row) => (row.disk === null || row.disk === undefined || row.disk < 0 ? "–" : `${Math.round(row.disk * 100)} %`), "number"],
  ["Up since", (row) => moment(row.boot_ms)],
];

export async function overview(parameters, place) {
  const history = charts("cluster");
  const draw = (look) => {
    const isWell = !look.error && look.brokers.length > 0 && !look.problems.length;
    place.replaceChildren(
      h("h1", {}, "Overview"),
      ...(look.error ? [failure(new Error(look.error))] : []),
      tiles(
        ["Health", look.error ? "unreachable" : isWell ? "healthy" : look.brokers.length ? counted(look.problems.length, "problem") : "no broker", isWell ? "good" : "bad"],
        ["In", rate(look.in_tps)], ["Out", rate(look.out_tps)],
        ["Lag", count(look.lag)], ["Dead letters", count(look.dead_letters), look.dead_letters ? "bad" : null],
        ["Brokers", count(look.brokers.length)], ["Topics", count(look.topic_count)], ["Groups", count(look.group_count)],
      ),
      h("h2", {}, "Needs attention"),
      look.problems.length ? h("ul", { class: "problems" }, look.problems.map((each) => h("li", { class: each.level }, h("strong", {}, each.what), ": ", each.text, " ",
        link("Show", each.page, { [each.page === "broker" ? "address" : each.page === "dlq" ? "group" : "name"]: each.name }))))
        : h("p", { class: "soft" }, "Brokers, replicas, disks, dead letters and consumer groups are in order, or not observed for long enough."),
      history.element,
      h("h2", {}, "Highest lag"),
      table("Consumer groups by lag time", groupColumns, look.late, "No lag."),
      h("h2", {}, "Busiest topics"),
      table("By messages per second", topicColumns, look.busy, "There are no topics yet."),
      h("h2", {}, "Brokers"),
      table("Brokers", brokerColumns, look.brokers, "No broker is registered."),
    );
  };
  draw(await get("overview"));
  await history.start();
  return async (look) => { draw(look); await history.update(); };
}

export async function brokers(parameters, place) {
  const columns = [...brokerColumns, ["Settings", (row) => link("settings", "settings", { broker: row.address })]];
  const draw = (look) => place.replaceChildren(h("h1", {}, "Brokers"), table("Brokers, their roles and rates", columns, look.brokers, "No broker is registered."));
  draw(await get("overview"));
  return draw;
}

export async function broker(parameters, place) {
  const history = charts("broker", parameters.address);
  const draw = (look) => {
    const row = look.brokers.find((each) => each.address === parameters.address);
    if (!row) {
      place.replaceChildren(h("h1", {}, `Broker ${parameters.address || ""}`), h("p", {}, "No broker is registered at this address."));
      return;
    }
    const known = (value, unit) => (value === null || value === undefined || value < 0 ? "–" : number(value, unit, true));
    place.replaceChildren(
      h("h1", {}, `Broker ${row.name}, ${row.role}`),
      ...(row.error ? [failure(new Error(row.error))] : []),
      h("div", { class: "bar" }, h("span", { class: "soft" }, `${row.address} in ${row.cluster}, ${version(row.version) || "version unknown"}, since ${moment(row.boot_ms)}`), link("Settings", "settings", { broker: row.address })),
      tiles(["In", rate(row.in_tps)], ["Out", rate(row.out_tps)], ["Send p99", known(row.put_p99_ms, "ms")],
        ["Disk", row.disk === null || row.disk === undefined || row.disk < 0 ? "–" : known(100 * row.disk, "%")], ["Connections", known(row.connections, "")],
        ...(row.role === "slave" ? [["Replication lag", known(row.behind_bytes, "bytes")]] : [])),
      history.element);
  };
  draw(await get("overview"));
  await history.start();
  return async (look) => { draw(look); await history.update(); };
}

export async function topics(parameters, place) {
  const list = await paged("Filter", (query) => get("topics", query), (rows, total, order) => table(counted(total, "topic"), topicColumns, rows, "No topic matches the filter.", order), parameters.filter || "");
  const name = h("input", { type: "text", required: true });
  const queues = h("input", { type: "number", min: "1", max: "1024", value: "8" });
  place.replaceChildren(h("h1", {}, "Topics"), list.element,
    h("h2", {}, "Create a topic"),
    h("div", { class: "bar" }, field("Name", name), field("Queues at each broker", queues),
      act("admin", "Create", "Create a topic", "topic-create", () => ({ topic: name.value, queues: queues.value }))));
  return list.update;
}

export async function topic(parameters, place) {
  const found = await get("topic", { name: parameters.name });
  const history = charts("topic", found.name);
  place.replaceChildren(
    h("h1", {}, `Topic ${found.name}`),
    h("div", { class: "bar" }, link("Send and watch", "send", { topic: found.name }), link("Find messages", "messages", { topic: found.name }),
      act("admin", "Delete", `Delete topic ${found.name}`, "topic-delete", { topic: found.name }, { danger: true, confirm: found.name, done: () => { location.hash = route("topics"); } })),
    history.element,
    h("h2", {}, "Queues"),
    table(counted(found.queues.length, "queue"), [
      ["Broker", (row) => row.broker], ["Queue", (row) => row.queue_id, "number"], ["Begin", (row) => count(row.min_offset), "number"],
      ["End", (row) => count(row.max_offset), "number"], ["Messages", (row) => count(row.max_offset - row.min_offset), "number"], ["Last message", (row) => moment(row.last_ms)],
    ], found.queues),
    h("h2", {}, "Consumer groups"),
    h("p", {}, found.groups.length ? found.groups.map((name, at) => [at ? ", " : "", link(name, "group", { name })]) : "none"),
    h("h2", {}, "Settings"),
    table("At each broker", [
      ["Broker", (row) => row.broker], ["Read queues", (row) => row.read_queues, "number"], ["Write queues", (row) => row.write_queues, "number"],
      ["Permission", (row) => changed(PERMISSIONS[row.perm] || row.perm, row.perm !== 6)], ["Ordered", (row) => changed(row.order ? "yes" : "no", row.order)],
      ["Message type", (row) => changed(row.type, row.type && row.type !== "UNSPECIFIED")], ["Acknowledgement", (row) => changed(row.ack || "the broker's", row.ack)],
    ], found.settings),
    topicForm(found, () => topic(parameters, place)),
  );
  await history.start();
  return history.update;
}

export async function groups(parameters, place) {
  const list = await paged("Filter", (query) => get("groups", query), (rows, total, order) => table(counted(total, "group"), groupColumns, rows, "No group matches the filter.", order), parameters.filter || "");
  place.replaceChildren(h("h1", {}, "Groups"), list.element);
  return list.update;
}

export async function group(parameters, place) {
  const name = parameters.name;
  const found = await get("group", { name });
  const history = charts("group", name);
  const reasons = explanation(name, found.look && ["OK", "UNKNOWN"].includes(found.look.state));
  const topicNames = [...new Set(found.queues.map((row) => row.topic).filter((each) => !each.startsWith("%")))];
  const topicInput = h("select", {}, topicNames.map((each) => h("option", {}, each)));
  const to = offsetPicker();
  const rebalances = rebalancesOf(name);
  place.replaceChildren(
    h("h1", {}, `Group ${name}`),
    found.look ? h("p", {}, state(found.look.state), ": ", found.look.reason) : h("p", {}, "The state of this group is not known yet."),
    h("div", { class: "bar" }, link("Dead letters", "dlq", { group: name }), link("Explain one message", "why", { group: name })),
    reasons,
    found.conflicts.length ? failure(new Error(`Members have different subscriptions, so they miss messages: ${found.conflicts.map((each) => `${each.client_id} subscribes to ${each.expression} of ${each.topic}, ${each.other_client_id} to ${each.other_expression}`).join("; ")}`)) : h("span"),
    history.element,
    h("h2", {}, "Queues"),
    table("Queues and their owners", [
      ["Topic", (row) => link(row.topic, "topic", { name: row.topic })], ["Broker", (row) => row.broker], ["Queue", (row) => row.queue_id, "number"],
      ["Committed", (row) => count(row.committed), "number"], ["End", (row) => count(row.end), "number"], ["Lag", (row) => count(row.lag), "number"],
      ["Filtered lag", (row) => count(row.wanted), "number"], ["Lag time", (row) => span(row.late_ms), "number"], ["Owner", (row) => row.owner || "none"],
    ], found.queues, "The group has no committed offsets: it never consumed."),
    h("h2", {}, "Members"),
    table(found.model ? `Connected, ${found.model.toLowerCase()}` : "Connected", [
      ["Member", (row) => row.client_id], ["Address", (row) => row.address], ["Protocol", (row) => row.protocol], ["Language", (row) => row.language], ["Version", (row) => row.version],
      ["Owned queues", (row) => queuesOf(found.queues.filter((each) => each.owner === row.client_id))],
      ["Lag", (row) => count(found.queues.filter((each) => each.owner === row.client_id).reduce((sum, each) => sum + each.lag, 0)), "number"],
    ], found.members, "No member is online."),
    h("h2", {}, "Subscriptions"),
    table("Subscriptions of the members", [["Topic", (row) => row.topic], ["Expression", (row) => row.expression], ["Expression type", (row) => row.type]], found.subscriptions, "No member has a subscription."),
    found.locks.length ? table("Locks of ordered queues", [
      ["Topic", (row) => row.topic], ["Queue", (row) => row.queue_id, "number"], ["Holder", (row) => row.client_id], ["Held for", (row) => span(row.held_ms), "number"], ["Renewed", (row) => `${span(row.age_ms)} ago`, "number"],
    ], found.locks) : h("span"),
    h("h2", {}, "Rebalances"),
    rebalances.element,
    h("h2", {}, "Reset offsets"),
    h("div", { class: "bar" }, field("Topic", topicInput), to.element,
      act("operator", "Preview", `Reset offsets of ${name}`, "reset", () => ({ group: name, topic: topicInput.value, to: to.value() }))),
    h("h2", {}, "Settings"),
    groupSettings(found, () => group(parameters, place)),
    h("div", { class: "bar" }, act("admin", "Delete", `Delete group ${name}`, "group-delete", { group: name }, { danger: true, confirm: name, done: () => { location.hash = route("groups"); } })),
  );
  await Promise.all([history.start(), rebalances.update()]);
  return async () => { await Promise.all([history.update(), rebalances.update()]); };
}

// The queues of a member, topic by topic.
function queuesOf(rows) {
  const topics = [...new Set(rows.map((row) => row.topic))];
  return topics.map((topic) => `${topic}: ${rows.filter((row) => row.topic === topic).map((row) => `${row.broker}/${row.queue_id}`).join(", ")}`).join("; ") || "none";
}

// The findings of `why`, requested when the reader opens them, and immediately for a group that needs attention.
function explanation(group, isClosed) {
  const said = h("div", {}, "Comparing offsets, members and subscriptions …");
  const element = h("details", { class: "card" }, h("summary", {}, "Why does it lag, or not consume?"), said);
  element.addEventListener("toggle", async () => {
    if (!element.open) return;
    try {
      const { findings } = await get("why", { group });
      said.replaceChildren(h("ol", { class: "findings" }, findings.map((each, at) => h("li", {}, at === 0 ? h("strong", {}, each.text) : each.text))));
    } catch (error) { said.replaceChildren(failure(error)); }
  });
  element.open = !isClosed;
  return element;
}

export async function trace(parameters, place) {
  const id = h("input", { type: "text", value: parameters.id || "", required: true });
  const found = h("div");
  place.replaceChildren(h("h1", {}, "Trace"), h("form", { onsubmit: (event) => {
    event.preventDefault();
    location.hash = route("trace", { id: id.value });
  } }, field("Message id or key", id), h("button", { class: "main" }, "Show")), found);
  if (!parameters.id) return;
  const { events } = await get("trace", { id: parameters.id });
  if (!events.length) {
    found.append(h("p", {}, "No trace found: clients record traces only with trace=True (Java: enableMsgTrace), and the records arrive some seconds later."));
    return;
  }
  found.append(h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Diagram of the trace" }, picture(events)),
    table("Records of the clients", [["Time", (row) => moment(row.time)], ["What", (row) => row.what], ["Group", (row) => row.group], ["Client", (row) => row.client_host], ["Topic", (row) => row.topic || "–"]], events));
}

function picture(events) {
  const svg = (tag, attributes, text) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const lanes = [...new Set(events.map((event) => `${event.group}`))];
  const times = events.map((event) => event.time).filter((time) => time > 0);
  const ends = events.map((event) => (event.time > 0 ? event.time + (event.cost_ms || 0) : 0));
  const first = Math.min(...times);
  const last = Math.max(...ends, first + 1);
  const width = 900, left = 200, right = 30, high = 46;
  const x = (time) => left + ((time - first) / (last - first)) * (width - left - right);
  const height = 40 + lanes.length * high;
  const root = svg("svg", { class: "trace", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Trace of the message over ${span(last - first)}: ${events.map((event) => event.what).join("; ")}` });
  lanes.forEach((lane, row) => {
    const y = 40 + row * high;
    root.append(svg("line", { class: "axis", x1: left, x2: width - right, y1: y, y2: y }), svg("text", { x: 8, y: y + 4 }, lane.slice(0, 28)));
  });
  root.append(svg("text", { class: "soft", x: left, y: 14 }, "0"), svg("text", { class: "soft", x: width - right, y: 14, "text-anchor": "end" }, `+${span(last - first)}`));
  events.forEach((event) => {
    if (!(event.time > 0)) return;
    const y = 40 + lanes.indexOf(`${event.group}`) * high;
    const kind = event.kind === "Pub" ? "sent" : event.success === false ? "failed" : "ok";
    // The record of a consumption's end has the end time minus the duration.
    const wide = Math.max(6, x(event.time + (event.cost_ms || 0)) - x(event.time));
    const mark = svg("rect", { class: kind, x: x(event.time) - 3, y: y - 7, width: wide, height: 14, rx: 4 });
    mark.append(svg("title", {}, event.what));
    root.append(mark);
  });
  return root;
}

export async function why(parameters, place) {
  const groups = picker("groups", parameters.group, { required: true });
  const topics = picker("topics", parameters.topic, { title: "Topic (optional)" });
  const [groupInput, topicInput] = [groups.input, topics.input];
  const message = h("input", { type: "text", value: parameters.message || "" });
  const found = h("div");
  place.replaceChildren(h("h1", {}, "Why?"), h("p", {}, "Explains why a group did not consume a message, lags, or consumed a message twice."),
    h("form", { onsubmit: (event) => {
      event.preventDefault();
      location.hash = route("why", { group: groupInput.value, topic: topicInput.value, message: message.value });
    } }, groups.element, topics.element, field("Message id (optional)", message), h("button", { class: "main" }, "Explain")), found);
  if (!parameters.group) {
    if (parameters.topic) found.replaceChildren(...(await askedOf(parameters)));
    return;
  }
  const { findings } = await get("why", { group: parameters.group, topic: parameters.topic, message: parameters.message });
  found.replaceChildren(h("ol", { class: "findings" }, findings.map((each, at) => h("li", {}, at === 0 ? h("strong", {}, each.text) : each.text))));
}

// The reason differs between the groups that consume the topic.
async function askedOf(parameters) {
  const { groups: names } = await get("topic", { name: parameters.topic });
  if (!names.length) return [h("p", {}, `No group consumes ${parameters.topic}.`)];
  return [h("h2", {}, "Which group?"), h("ul", {}, names.map((name) => h("li", {}, link(name, "why", { ...parameters, group: name }))))];
}
