// Dialogs: one question, what comes of the answer, and the answer. Escape closes them.

import { el, make, button, announce } from "./elements.js";

// Opens a dialog; act(say) does what is confirmed and may say what goes on. Closes when it has been done.
export const ask = ({ title, body = [], confirm, danger, act, ready }) => new Promise((resolve) => {
  const problem = make("p", { class: "problem", role: "alert", hidden: true });
  const yes = button(confirm, null, danger ? "danger" : "primary");
  const no = button("Cancel", () => box.close());
  const box = make("dialog", { "aria-labelledby": "dialog-title" }, make("form", { method: "dialog" },
    make("h2", { id: "dialog-title" }, title), ...body, problem, make("div", { class: "buttons" }, no, yes)));
  const before = document.activeElement;
  let answer = null;
  const handle = {
    form: box.querySelector("form"), yes,
    say(text) { problem.textContent = text; problem.hidden = !text; },
  };
  const go = async (e) => {
    e.preventDefault();
    if (yes.disabled) return;
    yes.disabled = true; handle.say("");
    const word = yes.textContent;
    yes.textContent = "One moment …";
    try {
      answer = await act(handle);
      if (answer === undefined) answer = true;
      box.close();
    } catch (error) { handle.say(error.message); }
    yes.textContent = word; yes.disabled = false;
  };
  yes.addEventListener("click", go);
  handle.form.addEventListener("submit", go);
  box.addEventListener("close", () => {
    box.remove();
    if (before && before.isConnected) before.focus();
    resolve(answer);
  });
  document.body.append(box);
  box.showModal();
  if (ready) ready(handle);
});

export const field = (label, input, note) => {
  input.id = input.id || `field-${Math.random().toString(36).slice(2)}`;
  return make("div", { class: "field" }, make("label", { for: input.id }, label), input, note && el("p", note, "note"));
};

// A line at the foot that tells what was done, for some seconds.
export const toast = (text) => {
  for (const old of document.querySelectorAll(".toast")) old.remove();
  const box = el("div", text, "toast");
  document.body.append(box);
  announce(text);
  setTimeout(() => box.remove(), 6000);
};
