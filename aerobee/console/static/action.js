// The dialog of a change: a preview, the equivalent command, and then the button that applies the change.

import { may, post } from "./api.js";
import { command, failure, h, say, table } from "./parts.js";

export function act(role, text, title, name, fields, { danger = false, confirm = "", done = () => {} } = {}) {
  const open = () => show(title, name, typeof fields === "function" ? fields() : fields, { danger, confirm, done });
  return h("button", { type: "button", class: danger ? "danger" : null, disabled: !may(role), title: may(role) ? null : `requires the role ${role}`, onclick: open }, text);
}

export async function show(title, name, fields, { danger = false, confirm = "", done = () => {} } = {}) {
  const dialog = document.getElementById("dialog");
  const body = h("div", {}, "Loading the preview …");
  const close = h("button", { type: "button", onclick: () => dialog.close() }, "Close");
  const buttons = h("div", { class: "bar" }, close);
  dialog.replaceChildren(h("h2", { id: "dialog-title" }, title), body, buttons);
  dialog.showModal();
  try {
    const preview = await post(`act/${name}`, { ...fields, dry_run: true });
    const typed = confirm ? h("input", { type: "text", autocomplete: "off" }) : null;
    body.replaceChildren(h("p", {}, preview.text), rows(preview.rows), h("h3", {}, "Equivalent command"), command(preview.command),
      ...(typed ? [h("label", {}, `Write ${confirm} to confirm`, typed)] : []));
    const go = h("button", { type: "button", class: danger ? "danger" : "main", onclick: async () => {
      go.disabled = true;
      try {
        const outcome = await post(`act/${name}`, typed ? { ...fields, confirm: typed.value } : fields);
        body.replaceChildren(h("p", { class: "good" }, outcome.text), rows(outcome.rows));
        go.remove();
        say(outcome.text);
        done(outcome);
      } catch (error) {
        go.disabled = false;
        body.prepend(failure(error));
      }
    } }, "Apply");
    buttons.prepend(go);
    go.focus();
  } catch (error) {
    body.replaceChildren(failure(error));
  }
}

function rows(found) {
  if (!found || !found.length) return h("div");
  const names = Object.keys(found[0]);
  const shown = (value) => (value === null || value === undefined || value === "" ? "–" : String(value));
  return table(`${found.length} in total`, names.map((each) => [each.replaceAll("_", " "), (row) => shown(row[each]), typeof found[0][each] === "number" ? "number" : null]), found);
}
