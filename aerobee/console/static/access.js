// Users and permissions of the cluster, and a placement plan.

import { act } from "./action.js";
import { get, plan } from "./api.js";
import { command, counted, failure, field, h, moment, picker, table } from "./parts.js";

const ACTIONS = ["Pub", "Sub", "Create", "Update", "Delete", "Get", "List", "All"];

export async function access(parameters, place) {
  const found = await get("access");
  if (found.unsupported) {
    place.replaceChildren(h("h1", {}, "Access"), h("p", { class: "soft" }, found.unsupported),
      h("h2", {}, "Turn it on"),
      h("p", {}, "Set these keys at every NameServer, controller and broker, restart them one after the other, and give the console and the clients their keys (docs/access-control.md):"),
      command('authenticationEnabled=true\nauthorizationEnabled=true\ninitAuthenticationUser={"username":"admin","password":"SECRET"}'));
    return;
  }
  const again = () => access(parameters, place);
  const everywhere = Math.max(0, ...found.users.map((row) => row.at.length));
  const where = (row) => (row.at.length === everywhere ? "every server" : h("span", { class: "warn" }, `only ${row.at.join(", ")}`));
  const change = (row, text, fields, options = {}) => act("admin", text, `${text} ${row.user}`, "user-update", { user: row.user, ...fields }, { done: again, ...options });
  place.replaceChildren(
    h("h1", {}, "Access"),
    h("p", {}, "Users of the cluster's access control and their permissions. Actions without a permission are denied."),
    table(counted(found.users.length, "user"), [
      ["User", (row) => row.user], ["User type", (row) => (row.is_super ? "administrator" : "normal")],
      ["Status", (row) => (row.is_enabled ? h("span", { class: "good" }, "enabled") : h("span", { class: "bad" }, "disabled"))], ["Known at", where],
      ["Change", (row) => h("div", { class: "bar" },
        change(row, row.is_enabled ? "Disable" : "Enable", { is_enabled: !row.is_enabled }, { danger: row.is_enabled }),
        change(row, row.is_super ? "Make normal" : "Make administrator", { is_super: !row.is_super }),
        act("admin", "Delete", `Delete user ${row.user}`, "user-delete", { user: row.user }, { danger: true, confirm: row.user, done: again }))],
    ], found.users, "There are no users."),
    h("h2", {}, "Create a user or change a secret key"), userForm(found.users, again),
    h("h2", {}, "Permissions"),
    table(counted(found.policies.length, "permission"), [
      ["User", (row) => row.user], ["Resource", (row) => row.resource],
      ["Decision", (row) => (row.is_allowed ? h("span", { class: "good" }, "allow") : h("span", { class: "bad" }, "deny"))],
      ["Actions", (row) => row.actions.join(", ")], ["Source IPs", (row) => row.source_ips.join(", ") || "everywhere"], ["Policy", (row) => row.policy], ["Known at", where],
      ["Change", (row) => act("admin", "Delete permission", `Delete permission on ${row.resource}`, "acl-delete", { user: row.user, resource: row.resource, policy: row.policy }, { danger: true, done: again })],
    ], found.policies, "There are no permissions: only administrators may use the cluster."),
    h("h2", {}, "Set permissions"), policyForm(found.users, again),
  );
}

function userForm(users, done) {
  const name = h("input", { type: "text", autocomplete: "off", list: "users" });
  const secret = h("input", { type: "password", autocomplete: "new-password" });
  const isSuper = h("input", { type: "checkbox" });
  return h("div", { class: "bar" }, field("User", name), field("Secret key", secret), field("Administrator", isSuper),
    act("admin", "Create", "Create a user", "user-create", () => ({ user: name.value, secret_key: secret.value, is_super: isSuper.checked }), { done }),
    act("admin", "Change key", "Change a secret key", "user-update", () => ({ user: name.value, secret_key: secret.value }), { done }));
}

function policyForm(users, done) {
  const user = h("input", { type: "text", list: "users" });
  const kind = h("select", { onchange: () => fit() }, ["Topic", "Group", "Cluster", "everything"].map((each) => h("option", {}, each)));
  const names = { Topic: picker("topics", "", { title: "Name or pattern" }), Group: picker("groups", "", { title: "Name or pattern" }) };
  const fit = () => { for (const [each, one] of Object.entries(names)) one.element.hidden = each !== kind.value; };
  fit();
  const resource = () => (kind.value === "everything" ? "*" : kind.value === "Cluster" ? "Cluster:*" : `${kind.value}:${names[kind.value].input.value.trim()}`);
  const boxes = ACTIONS.map((name) => h("input", { type: "checkbox", value: name }));
  const decision = h("select", {}, h("option", { value: "allow" }, "allow"), h("option", { value: "deny" }, "deny"));
  const sources = h("input", { type: "text", placeholder: "everywhere" });
  const policy = h("select", {}, h("option", {}, "Custom"), h("option", {}, "Default"));
  return h("div", {},
    h("datalist", { id: "users" }, users.map((row) => h("option", { value: row.user }))),
    h("div", { class: "bar" }, field("User", user), field("Decision", decision), field("Resource", kind), names.Topic.element, names.Group.element, field("Source IPs", sources), field("Policy", policy)),
    h("fieldset", { class: "bar" }, h("legend", {}, "Actions"), boxes.map((box, at) => h("label", { class: "row" }, box, ACTIONS[at]))),
    h("p", { class: "soft" }, "A pattern ends with *: billing*. Source IPs: 10.0.0.7, 10.0.0.0/8. The Default policy applies where Custom has no entry."),
    act("admin", "Preview", "Set permissions", "acl-put", () => ({
      user: user.value, resource: resource(), actions: boxes.filter((box) => box.checked).map((box) => box.value).join(","),
      is_allowed: decision.value === "allow", source_ips: sources.value, policy: policy.value,
    }), { done }));
}

export async function placement(parameters, place) {
  const shown = h("div");
  const file = h("input", { type: "file", accept: ".json,application/json", onchange: async () => {
    if (!file.files.length) return;
    shown.replaceChildren(h("p", {}, "Comparing it with the cluster …"));
    try { shown.replaceChildren(...planParts(await plan(await file.files[0].text()))); } catch (error) { shown.replaceChildren(failure(error)); }
  } });
  place.replaceChildren(h("h1", {}, "Placement"),
    h("p", {}, "A plan moves queues of topics to other brokers. This page shows it and compares it with the cluster. The command line executes it, because that takes until consumer groups have read the moved queues."),
    h("div", { class: "bar" }, field("Plan file", file)), shown);
  const found = await get("placement");
  shown.replaceChildren(...(found.file ? planParts(found) : [
    h("p", { class: "soft" }, "The console was started without --plan. Create a plan, then choose its file here:"),
    command("aerobee spark placement --history /data/load --sample 60 --every 60 --plan plan.json"),
  ]));
}

function planParts(found) {
  const even = (value) => (value === null || value === undefined ? "–" : value.toFixed(2));
  const queues = (counts) => Object.entries(counts).map(([name, each]) => `${name} ${each}`).join(", ") || "none";
  return [
    h("p", {}, `${found.file}, made ${moment(found.made_at_ms)}${found.is_begun ? ", begun" : ""}`),
    found.trouble ? failure(new Error(found.trouble)) : h("p", { class: found.steps_left ? null : "good" }, found.steps_left ? `${counted(found.steps_left, "step")} left.` : "No steps left."),
    ...found.warnings.map((text) => h("p", { class: "warn" }, text)),
    h("h2", {}, "Forecast"),
    table("Imbalance (1 = even)", [["Imbalance of", (row) => row.resource], ["Before", (row) => even(row.before), "number"], ["After", (row) => even(row.after), "number"]], found.forecast, "The plan has no brokers."),
    h("h2", {}, "Changes"),
    table(counted(found.changes.length, "topic"), [["Topic", (row) => row.topic], ["Queues now", (row) => queues(row.before)], ["Queues then", (row) => queues(row.after)],
      ["Moved keys", (row) => (row.moved_keys === null ? "–" : `${Math.round(row.moved_keys * 100)} %`), "number"]], found.changes, "The plan changes nothing."),
    h("h2", {}, "Remaining phases"),
    table("Steps of each kind", [["Phase", (row) => row.phase], ["Steps", (row) => row.steps, "number"]], found.phases, "None."),
    h("details", {}, h("summary", {}, `Steps${found.steps.length < found.steps_left ? `, the first ${found.steps.length}` : ""}`),
      table("In order, topic by topic", [["Phase", (row) => row.phase], ["Step", (row) => row.step]], found.steps, "None.")),
    h("h2", {}, "On the command line"),
    h("h3", {}, "Show the steps only"), command(found.commands.look), h("h3", {}, "Apply or continue"), command(found.commands.apply), h("h3", {}, "Revert"), command(found.commands.revert),
  ];
}
