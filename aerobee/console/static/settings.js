// Settings of a broker: changed ones first, the others by subject, with a search over all of them.

import { act } from "./action.js";
import { get, may } from "./api.js";
import { counted, field, h, route, table } from "./parts.js";

export async function settings(parameters, place) {
  const look = await get("overview");
  const broker = parameters.broker || (look.brokers[0] && look.brokers[0].address);
  if (!broker) {
    place.replaceChildren(h("h1", {}, "Settings"), h("p", {}, "No broker is registered."));
    return;
  }
  const chooser = h("select", { onchange: (event) => { location.hash = route("settings", { broker: event.target.value }); } },
    look.brokers.map((each) => h("option", { value: each.address, selected: each.address === broker }, `${each.name} ${each.role} ${each.address}`)));
  const found = await get("settings", { broker });
  const byKey = new Map(found.settings.map((row) => [row.key, row]));
  const isChanged = (row) => row.default !== "" && row.value !== row.default;
  const key = h("select", { onchange: () => fit() }, found.settings.filter((row) => row.is_live).map((row) => h("option", {}, row.key)));
  const value = h("input", { type: "text" });
  const meaning = h("p", { class: "soft", role: "status" });
  const fit = () => { const row = byKey.get(key.value); if (row) { value.value = row.value; meaning.textContent = `${row.meaning} Default: ${row.default || "none"}.`; } };
  const change = (row) => h("button", { type: "button", disabled: !may("admin"), "aria-label": `Change ${row.key}`, title: may("admin") ? null : "requires the role admin", onclick: () => { key.value = row.key; fit(); value.focus(); value.select(); } }, "Change");
  const columns = [
    ["Setting", (row) => h("code", {}, row.key)], ["Value", (row) => (isChanged(row) ? h("strong", {}, row.value) : row.value)], ["Default", (row) => row.default || "–"],
    ["Meaning", (row) => row.meaning || "–"], ["Change", (row) => (row.is_live ? change(row) : "after a restart")],
  ];
  const list = h("div");
  const search = h("input", { type: "search", oninput: () => draw() });
  const onlyChanged = h("input", { type: "checkbox", onchange: () => draw() });
  function draw() {
    const wanted = search.value.trim().toLowerCase();
    const rows = found.settings.filter((row) => `${row.key} ${row.meaning} ${row.value}`.toLowerCase().includes(wanted));
    const first = rows.filter(isChanged);
    const parts = [h("h2", {}, "Changed"), table(`${counted(first.length, "setting")} with a value that is not the default`, columns, first, "No setting that matches differs from its default.")];
    for (const subject of onlyChanged.checked ? [] : found.subjects) {
      const own = rows.filter((row) => row.subject === subject);
      if (!own.length) continue;
      parts.push(h("details", { class: "subject", open: Boolean(wanted) }, h("summary", {}, `${subject} (${own.length})`), table(`${subject}: ${counted(own.length, "setting")}`, columns, own)));
    }
    list.replaceChildren(...parts);
  }
  draw();
  fit();
  place.replaceChildren(h("h1", {}, "Settings"), h("div", { class: "bar" }, field("Broker", chooser), field("Search all settings", search), h("label", { class: "row" }, onlyChanged, "only changed ones")),
    h("h2", {}, "Change a setting at runtime"),
    h("div", { class: "bar" }, field("Setting", key), field("New value", value),
      act("admin", "Preview", "Change a setting", "setting", () => ({ broker, key: key.value, value: value.value }), { done: () => settings(parameters, place) })),
    meaning, list);
}
