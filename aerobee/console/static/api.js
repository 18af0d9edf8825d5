// Requests to the console's server.

export const session = { csrf: "", role: "viewer", read_only: false, has_login: false, user: "", nameserver: "" };
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
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== "" && value !== undefined && value !== null));
  return answer(await fetch(`/api/${view}?${query}`, { headers: { Accept: "application/json" } }));
}

async function sent(path, body) {
  return answer(await fetch(`/api/${path}`, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-CSRF-Token": session.csrf },
    body,
  }));
}

export async function post(path, fields) {
  return sent(path, JSON.stringify(fields));
}

export async function plan(text) {
  return sent("plan", text);
}

export async function begin() {
  Object.assign(session, { csrf: "", user: "" }, await get("session"));
  return Boolean(session.csrf);
}
