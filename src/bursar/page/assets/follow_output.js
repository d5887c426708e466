// What a task prints while it runs: both streams in one box, as they come.

import { button, el, make } from "./elements.js";

const TAIL = 65536; // bytes of each stream that are there already and are shown
const MOST = 400000; // characters that stay in the box
const AGAIN = 2000; // milliseconds between two searches for a task that runs

// Returns {node, close}; over() is called when the task has ended.
export const followOutput = (source, run, number, over) => {
  const text = make("pre", { class: "output", tabindex: "0", "aria-label": "Output as it comes", hidden: true }); // shown once there is something
  const state = el("p", "Following …", "note");
  state.setAttribute("aria-live", "polite");
  let length = 0;
  const stop = source.follow(run, number, TAIL, (event, data) => {
    if (event === "begin") { text.replaceChildren(); length = 0; } // again after a break: the end comes once more
    else if (event === "note") state.textContent = data.text;
    else if (event === "end") { stop(); over(); }
    else if (event === "output" && data.text) {
      const stays = text.scrollHeight - text.scrollTop - text.clientHeight < 30; // who has scrolled up reads
      text.append(data.stream === "stderr" ? el("span", data.text, "bad") : data.text);
      length += data.text.length;
      text.hidden = false;
      while (length > MOST && text.firstChild !== text.lastChild) { length -= text.firstChild.textContent.length; text.firstChild.remove(); }
      if (stays) text.scrollTop = text.scrollHeight;
    }
  });
  return { node: make("div", {}, state, text), close: stop };
};

// A field for the number of a task, and what that prints. isOn tells whether one is followed;
// suggest(find) asks for a number that makes sense, until the reader has typed one.
export const followChosen = (source, run) => {
  const number = make("input", { id: "follow-number", type: "number", min: "0", step: "1", value: "0" }), place = make("div");
  let following = null, typed = false, asked = 0;
  number.addEventListener("input", () => { typed = true; });
  const begin = () => {
    following?.close();
    following = followOutput(source, run, Number(number.value), () => place.append(el("p", "The task has ended.", "note")));
    place.replaceChildren(following.node);
  };
  return {
    node: make("div", {}, make("div", { class: "tools" }, make("label", { for: "follow-number" }, "Task"), number, button("Follow", begin)), place),
    isOn: () => Boolean(following),
    suggest: async (find) => {
      if (typed || following || Date.now() - asked < AGAIN) return;
      asked = Date.now();
      const found = await find().catch(() => null);
      if (found !== null && !typed && !following) number.value = String(found);
    },
    close: () => following?.close(),
  };
};
