// The topology: NameServers, controllers, and the brokers of each group.

import { act } from "./action.js";
import { get } from "./api.js";
import { counted, h, link, number, rate, table } from "./parts.js";

const bad = (text) => h("span", { class: "bad" }, text);
const stateOf = (row) => (row.trouble ? bad(row.trouble) : h("span", { class: "good" }, "up"));

function node(title, kind, facts, trouble) {
  return h("li", { class: trouble ? "node wrong" : "node" }, h("strong", {}, title), h("span", { class: "soft" }, kind), facts.filter(Boolean).map((fact) => h("span", {}, fact)), trouble ? bad(trouble) : null);
}

function group(found, controllers, done) {
  const inSync = found.brokers.filter((row) => row.is_in_sync);
  const columns = [
    ["Role", (row) => (row.role === "gone" ? bad("gone") : row.role)],
    ["Address", (row) => (row.role === "gone" ? row.address : link(row.address, "broker", { address: row.address }))],
    ["State", stateOf],
    ["Epoch", (row) => row.epoch || "–", "number"],
    ["In sync", (row) => (row.is_in_sync === null ? "–" : row.is_in_sync ? h("span", { class: "good" }, "yes") : bad("no"))],
    ["Replication lag", (row) => (row.role === "slave" ? number(row.behind_bytes, "bytes", true) : "–"), "number"],
    ["In", (row) => rate(row.in_tps), "number"],
    ["Disk", (row) => (row.disk === null || row.disk === undefined || row.disk < 0 ? "–" : h("span", { class: row.disk >= 0.85 ? "bad" : null }, `${Math.round(row.disk * 100)} %`)), "number"],
  ];
  if (controllers) {
    columns.push(["Change", (row) => (row.role === "slave" && row.controller_id !== null && row.is_in_sync
      ? act("admin", "Make master", `Make ${row.address} the master of ${found.name}`, "elect", { broker: found.name, id: row.controller_id }, { done }) : "–")]);
  }
  return h("section", { class: found.trouble || found.brokers.some((row) => row.trouble) ? "card wrong" : "card", "aria-label": `Group ${found.name}` },
    h("div", { class: "bar" }, h("h3", {}, found.name), h("span", { class: "soft" }, `in ${found.cluster}${controllers ? `, in-sync set of ${inSync.length}` : ""}`),
      act("admin", "Drain …", `Make ${found.name} read-only`, "read-only", { broker: found.name }, { danger: true, done }),
      act("admin", "Accept messages", `Make ${found.name} writable`, "writable", { broker: found.name }, { done })),
    found.trouble ? h("p", {}, bad(found.trouble)) : null,
    table(`Brokers of ${found.name}`, columns, found.brokers));
}

export async function topology(parameters, place) {
  const draw = async () => {
    const found = await get("topology");
    const again = () => draw();
    place.replaceChildren(h("h1", {}, "Topology"),
      h("h2", {}, "NameServers"),
      h("ul", { class: "nodes" }, found.nameservers.map((each) => node(each.address, "NameServer", [each.brokers === null ? null : `${counted(each.brokers, "broker")} registered`], each.trouble))),
      h("h2", {}, "Controllers"),
      found.controllers.length ? found.controllers.map((quorum) => h("div", {},
        h("p", {}, `${quorum.addresses}: `, quorum.trouble ? bad(quorum.trouble) : `leader ${quorum.leader}${quorum.term ? `, term ${quorum.term}` : ""}`),
        h("ul", { class: "nodes" }, quorum.members.map((each) => node(each.id, each.role, [], ""))))) : h("p", { class: "soft" }, "No broker is in controller mode: roles are configured, and no master is elected."),
      h("h2", {}, "Broker groups"),
      found.groups.length ? h("div", { class: "groups" }, found.groups.map((each) => group(each, found.controllers.length > 0, again))) : h("p", {}, "No broker is registered."));
  };
  await draw();
  let due = Date.now() + 5000;
  return async () => { if (Date.now() >= due) { due = Date.now() + 5000; await draw(); } };
}
