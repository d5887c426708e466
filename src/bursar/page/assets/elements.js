// Pieces of the page. Text is always set as text: nothing that a task says becomes part of the page.

export const el = (tag, text, cls) => {
  const node = document.createElement(tag);
  if (text !== undefined && text !== null) node.textContent = text;
  if (cls) node.className = cls;
  return node;
};

// An element with attributes and children; a child may be text, a node or nothing.
export const make = (tag, attributes, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class") node.className = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
};

export const button = (text, act, cls, attributes) => make("button", { type: "button", class: cls, onclick: act, ...attributes }, text);

export const link = (text, href, cls) => make("a", { href, class: cls }, text);

// A part of a page with its heading.
export const section = (title, { id, wide, cls, note } = {}, ...children) => {
  const heading = el("h2", title);
  if (id) heading.id = `${id}-title`;
  return make("section", { id: id && `${id}-section`, class: [wide && "wide", cls].filter(Boolean).join(" ") || null, "aria-labelledby": id && heading.id },
    heading, note && el("p", note, "note"), ...children);
};

const upper = (text) => text.slice(0, 1).toUpperCase() + text.slice(1);

// Heads begin with # for numbers and with * for long text.
const kindOf = (head) => ({ "#": "num", "*": "long" })[head[0]] || null;

export const table = (heads, body, empty, label) => {
  if (!body.length) return el("p", empty, "note");
  const head = make("tr", {}, heads.map((h) => make("th", { scope: "col", class: kindOf(h) }, upper(h.replace(/^[#*]/, "")))));
  const rows = body.map((row) => make("tr", {}, row.map((cell, i) => make("td", { class: kindOf(heads[i]) }, cell instanceof Node ? cell : String(cell ?? "")))));
  return scrolled(make("table", {}, make("thead", {}, head), make("tbody", {}, rows)), label);
};

// A list of things that have views of their own; on a narrow screen each is a card with the heads as labels.
export const list = (heads, body, empty, label) => {
  if (!body.length) return make("div", { class: "card empty-state" }, el("p", empty, "note"));
  const word = (h) => h.replace(/^[#*]/, "");
  const head = make("tr", {}, heads.map((h) => make("th", { scope: "col", class: kindOf(h) }, word(h))));
  const rows = body.map((row) => make("tr", {}, row.map((cell, i) => make("td", { "data-label": word(heads[i]), class: i ? kindOf(heads[i]) : "name" }, cell))));
  return make("div", { class: "card" }, scrolled(make("table", { class: "list" }, make("thead", {}, head), make("tbody", {}, rows)), label));
};

// A box that scrolls can be scrolled by keyboard.
export const scrolled = (content, label) => make("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": label || "table" }, content);

// A chart's legend: a mark's class, its colour, its word.
export const legend = (box, marks) => {
  const said = JSON.stringify(marks);
  if (box.dataset.marks === said) return;
  box.dataset.marks = said;
  box.replaceChildren(...marks.map(([cls, colour, word]) => {
    const mark = el("i", null, cls);
    mark.style.color = colour;
    return make("span", {}, mark, word);
  }));
};

export const figure = (name, value, { small, cls, share, warn, lost } = {}) => make("div", { class: "figure" },
  el("dt", upper(name)), make("dd", { class: cls }, value, small ? el("small", small) : null,
    share === undefined || share === null ? null : meter(share, name, warn, lost)));

// A bar that is filled by a share, of which a part is lost.
export const meter = (share, label, cls, lost = 0) => {
  const full = Math.max(0, Math.min(1, share)), fill = el("i"), rest = lost ? el("i", null, "bad") : null;
  fill.style.width = `${100 * (full - lost)}%`;
  if (rest) rest.style.width = `${Math.max(1, 100 * lost)}%`;
  return make("span", { class: `meter ${cls || ""}`, role: "meter", "aria-label": label, "aria-valuemin": "0", "aria-valuemax": "100", "aria-valuenow": String(Math.round(100 * full)) }, fill, rest);
};

const STATES = {
  succeeded: "good", finished: "good", running: "main", planned: "main", failed: "bad", damaged: "bad", lost: "bad", "timed-out": "bad",
  "budget-stopped": "warn", interrupted: "warn", stopped: "warn", skipped: "warn",
};

export const stateClass = (state) => STATES[state] || "";

export const pill = (state) => el("span", state.replaceAll("-", " "), `pill ${stateClass(state)}`);

// One box at the pointer for everything that can be asked where it lies.
const tip = make("div", { id: "tip", role: "status", hidden: true });
document.body.append(tip);
export const showTip = (text, x, y) => {
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  tip.style.left = Math.max(4, Math.min(x + 12, innerWidth - tip.offsetWidth - 8)) + "px";
  tip.style.top = (y + 14 + tip.offsetHeight > innerHeight ? y - tip.offsetHeight - 8 : y + 14) + "px";
};

// What a screen reader is told of a change.
export const announce = (text) => {
  let box = document.getElementById("announcements");
  if (!box) {
    box = make("div", { id: "announcements", class: "unseen", "aria-live": "polite" });
    document.body.append(box);
  }
  if (box.textContent !== text) box.textContent = text;
};

export const trouble = (text) => {
  let box = document.getElementById("trouble");
  if (!box) {
    box = make("p", { class: "trouble", id: "trouble", role: "alert" });
    document.body.prepend(box);
  }
  box.textContent = text;
  box.hidden = !text;
};
