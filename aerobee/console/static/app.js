// Routing, updates of the current page, and login.

import { begin, cluster, path, post, session } from "./api.js";
import { failure, field, h, route } from "./parts.js";
import * as access from "./access.js";
import { messages } from "./messages.js";
import * as pages from "./pages.js";
import { settings } from "./settings.js";
import { topology } from "./topology.js";
import * as work from "./work.js";

// The sections of the navigation with their pages.
const SECTIONS = [
  ["Observe", [["overview", "Overview", pages.overview], ["topology", "Topology", topology], ["brokers", "Brokers", pages.brokers], ["topics", "Topics", pages.topics], ["groups", "Groups", pages.groups]]],
  ["Messages", [["messages", "Messages", messages], ["send", "Send and watch", work.send], ["dlq", "Dead letters", work.dlq], ["transactions", "Transactions", work.transactions], ["timers", "Timers", work.timers],
    ["schedules", "Schedules", work.schedules], ["trace", "Trace", pages.trace], ["why", "Why?", pages.why]]],
  ["Operate", [["settings", "Settings", settings], ["access", "Access", access.access], ["placement", "Placement", access.placement]]],
];
const PAGES = SECTIONS.flatMap(([, pagesOf]) => pagesOf);
const BELOW = { broker: ["brokers", pages.broker], topic: ["topics", pages.topic], group: ["groups", pages.group] };
const main = document.getElementById("main");
let current = { number: 0, update: null, leave: null };
let stream = null;

function where() {
  const [path, query = ""] = location.hash.replace(/^#\//, "").split("?");
  return [path || "overview", Object.fromEntries(new URLSearchParams(query))];
}

async function show() {
  if (location.hash && !location.hash.startsWith("#/")) return; // an anchor on the page: the skip link
  const [name, parameters] = where();
  const page = PAGES.find((each) => each[0] === name);
  const [above, draw] = page ? [name, page[2]] : BELOW[name] || ["overview", pages.overview];
  if (current.leave) current.leave();
  const number = current.number + 1;
  current = { number, update: null, leave: null };
  for (const link of document.querySelectorAll("#nav a")) {
    if (link.dataset.page === above) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const place = h("div");
  main.replaceChildren(place);
  main.setAttribute("aria-busy", "true");
  try {
    const result = await draw(parameters, place);
    if (current.number !== number) { if (result && result.leave) result.leave(); return; }
    if (typeof result === "function") current.update = result;
    else if (result && result.leave) current.leave = result.leave;
  } catch (error) {
    if (error.status === 401) { await login(); return; }
    if (!place.querySelector("h1")) place.append(h("h1", {}, name));
    place.append(failure(error));
  }
  main.removeAttribute("aria-busy");
  document.title = `${(main.querySelector("h1") || main).textContent} – Aerobee console`;
}

// The focus on an element that was drawn again, or on the one that replaced it.
function focusAgain(element) {
  const name = (each) => each.getAttribute("aria-label") || each.textContent;
  const now = element.isConnected ? element : [...main.querySelectorAll(element.tagName)].find((each) => name(each) === name(element));
  if (now) now.focus({ preventScroll: true });
}

function listen() {
  if (stream) stream.close();
  stream = new EventSource(path("stream"));
  stream.onmessage = async (event) => {
    const look = JSON.parse(event.data);
    // A field in use keeps its page as it is, so that input is not lost. Another element with the focus has it again afterwards.
    const focused = main.contains(document.activeElement) && document.activeElement !== main ? document.activeElement : null;
    if (!current.update || (focused && focused.matches("input, select, textarea, [role=slider]"))) return;
    const number = current.number;
    try { await current.update(look); } catch (error) { if (current.number === number) main.append(failure(error)); }
    if (focused && document.activeElement === document.body) focusAgain(focused);
  };
}

async function login() {
  if (stream) { stream.close(); stream = null; }
  const name = h("input", { type: "text", autocomplete: "username", required: true });
  const password = h("input", { type: "password", autocomplete: "current-password", required: true });
  const trouble = h("div");
  main.replaceChildren(h("h1", {}, "Log in"), trouble, h("form", { onsubmit: async (event) => {
    event.preventDefault();
    try {
      await post("login", { name: name.value, password: password.value });
      await start();
    } catch (error) { trouble.replaceChildren(failure(error)); password.value = ""; password.focus(); }
  } }, field("Name", name), field("Password", password), h("button", { class: "main" }, "Log in")));
  main.removeAttribute("aria-busy");
  name.focus();
}

// The name of the cluster, or a choice among several, each with its own address in the browser.
function clusterChooser() {
  if (session.clusters.length < 2) return [`NameServer ${session.clusters[0].nameserver}`];
  const chooser = h("select", { "aria-label": "Cluster", onchange: () => { location.assign(`${location.pathname}${chooser.value ? `?cluster=${encodeURIComponent(chooser.value)}` : ""}#/overview`); } },
    session.clusters.map((each) => h("option", { value: each.name, selected: each.name === cluster }, `${each.name || "first"}: ${each.nameserver}`)));
  return [chooser];
}

async function start() {
  if (!(await begin())) { await login(); return; }
  document.getElementById("cluster").replaceChildren(...clusterChooser());
  const who = document.getElementById("who");
  who.replaceChildren(`${session.user}, ${session.role}${session.read_only ? ", read-only" : ""} `);
  if (session.has_login) who.append(h("button", { type: "button", onclick: async () => { await post("logout", {}); location.reload(); } }, "Log out"));
  listen();
  await show();
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  const button = document.getElementById("theme");
  button.textContent = name === "dark" ? "Light" : "Dark";
  button.setAttribute("aria-label", `Use ${name === "dark" ? "light" : "dark"} colours`);
}

function wanted() {
  try { const kept = localStorage.getItem("theme"); if (kept) return kept; } catch { /* storage may be forbidden: use the system's preference */ }
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

document.getElementById("theme").addEventListener("click", () => {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  theme(next);
  try { localStorage.setItem("theme", next); } catch { /* the choice then lasts until the next load of the page */ }
});
document.getElementById("nav").append(...SECTIONS.map(([section, pagesOf]) => h("div", { role: "group", "aria-label": section }, h("p", {}, section), pagesOf.map(([name, title]) => h("a", { href: route(name), "data-page": name }, title)))));
addEventListener("hashchange", async () => { await show(); if (location.hash.startsWith("#/")) main.focus(); });
theme(wanted());
start().catch((error) => main.replaceChildren(failure(error)));
