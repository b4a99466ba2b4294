// What a change came to, and the question before one that cannot be undone.

import { h, newId } from "./dom.js";

const SHOWN_MS = 8000;

export function tell(text, kind = "good") {
  const close = () => notice.remove();
  const notice = h("div", { class: `notice ${kind}` }, h("span", {}, text),
    h("button", { type: "button", class: "quiet", "aria-label": "Dismiss this notice", onclick: close }, "×"));
  document.getElementById("notices").append(notice);
  if (kind === "good") setTimeout(close, SHOWN_MS);
}

// Carry out a change; say what it did, or why it was refused.  True when it was carried out.
export async function attempt(change, done) {
  try {
    await change();
  } catch (problem) {
    tell(problem.message, "bad");
    return false;
  }
  if (done) tell(done);
  return true;
}

export function confirmed(question, verb) {
  return new Promise((resolve) => {
    const id = newId("question");
    const dialog = h("dialog", { "aria-labelledby": id, onclose: () => { dialog.remove(); resolve(dialog.returnValue === "yes"); } },
      h("form", { method: "dialog" },
        h("p", { id }, question),
        h("div", { class: "actions" },
          h("button", { value: "no", autofocus: true }, "Cancel"),
          h("button", { value: "yes", class: "danger" }, verb))));
    document.body.append(dialog);
    dialog.showModal();
  });
}

export const dangerous = (verb, question, act) =>
  h("button", { type: "button", class: "danger", onclick: async () => { if (await confirmed(question, verb)) await act(); } }, verb);
