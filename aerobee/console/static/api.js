// Requests to the console's server.

export const session = { csrf: "", role: "viewer", read_only: false, has_login: false, user: "", clusters: [] };

// The cluster that the address of the page names; empty: the first.
export const cluster = new URLSearchParams(location.search).get("cluster") || "";

// The path of a request, with its parameters and the cluster.
export function path(name, parameters = {}) {
  const query = new URLSearchParams(Object.entries({ ...parameters, cluster }).filter(([, value]) => value !== "" && value !== undefined && value !== null));
  return `/api/${name}?${query}`;
}
const RANK = { viewer: 1, operator: 2, admin: 3 };

export function may(role) {
  return !session.read_only && RANK[session.role] >= RANK[role];
}

async function answer(response) {
  let document = {};
  try { document = await response.json(); } catch { /* the status below tells the error */ }
  if (!response.ok) {
    const error = new Error(document.error || `the console replied with status ${response.status}`);
    error.status = response.status;
    throw error;
  }
  return document;
}

export async function get(view, parameters = {}) {
  return answer(await fetch(path(view, parameters), { headers: { Accept: "application/json" } }));
}

async function sent(name, body) {
  return answer(await fetch(path(name), {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-CSRF-Token": session.csrf },
    body,
  }));
}

export async function post(name, fields) {
  return sent(name, JSON.stringify(fields));
}

export async function plan(text) {
  return sent("plan", text);
}

export async function begin() {
  Object.assign(session, { csrf: "", user: "" }, await get("session"));
  return Boolean(session.csrf);
}
