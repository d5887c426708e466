// The list of runs: state, progress, money and odds of each; searched, filtered, sorted, compared.

import { button, el, link, make, meter, pill } from "./elements.js";
import { moment, money, num, percent, runAddress, time, whole } from "./format.js";
import { toast } from "./dialogs.js";

const COLUMNS = [
  ["", "choose"], ["Run", "run"], ["State", "state"], ["Progress", "progress"], ["Spent", "spent"], ["Took", "end"], ["Odds", "odds"], ["Begun", "created"],
];
const ended = (row) => (row.succeeded || 0) + (row.failed || 0) + (row.skipped || 0);
const VALUE = {
  run: (row) => row.run, state: (row) => row.state, created: (row) => row.created || 0,
  progress: (row) => ended(row) / Math.max(1, row.tasks), spent: (row) => row.spent ?? -1,
  end: (row) => row.live && row.forecast ? row.forecast.end_s.p50 : row.took_s ?? Infinity,
  odds: (row) => row.live && row.forecast ? row.forecast.odds ?? 2 : 2,
};

export { runAddress };

export const runsView = (source, host, route) => {
  const rows = new Map();
  const chosen = new Set();
  const asked = { search: route.query.get("search") || "", state: route.query.get("state") || "", sort: "created", descending: true };
  const search = make("input", { type: "search", placeholder: "Search name, campaign, tag, note", "aria-label": "Search runs", value: asked.search });
  const state = make("select", { "aria-label": "State" });
  const compare = button("Compare", () => { location.hash = `#/compare/${[...chosen].map(encodeURIComponent).join("/")}`; }, "", { disabled: true });
  const folder = el("p", null, "lead");
  const body = make("tbody"), heads = make("tr");
  const empty = make("div", { class: "empty-state", hidden: true });
  const table = make("table", { class: "list" }, make("caption", { class: "unseen" }, "Runs"), make("thead", {}, heads), body);
  const count = make("span", { class: "note", role: "status" });
  host.append(make("div", { class: "head" }, make("div", {}, el("h1", "Runs"), folder), make("div", { class: "actions" }, source.can.has("plan") && link("New campaign", "#/plan", "button primary"))),
    make("div", { class: "tools" }, search, state, compare, count), make("div", { class: "card" }, table, empty));

  const lines = new Map(); // a run's line is made anew only when its row changed
  const line = (row) => {
    const known = lines.get(row.run);
    if (known && known.row === row) return known.node;
    const box = make("input", { type: "checkbox", "aria-label": `Choose ${row.run} to compare` });
    box.checked = chosen.has(row.run);
    box.addEventListener("change", () => {
      if (box.checked) chosen.add(row.run); else chosen.delete(row.run);
      if (chosen.size > 2) { box.checked = false; chosen.delete(row.run); toast("Two runs can be compared."); }
      compare.disabled = chosen.size !== 2;
    });
    const done = ended(row), fan = row.live && row.forecast, odds = fan ? row.forecast.odds : null;
    const cell = (label, cls, ...content) => make("td", { "data-label": label, class: cls }, ...content);
    const node = make("tr", {},
      cell("", "choose", box),
      cell("Run", "name", link(row.run, runAddress(row.run)), el("small", row.campaign === row.run ? "" : row.campaign), row.tags.length > 0 && make("span", { class: "tags" }, row.tags.map((tag) => el("span", tag, "tag"))), row.note && el("small", row.note, "said")),
      cell("State", "", pill(row.state)),
      cell("Progress", "progress", make("span", {}, `${whole(done)} of ${whole(row.tasks)}`, row.failed > 0 && el("span", ` · ${whole(row.failed)} failed`, "bad")), meter(done / Math.max(1, row.tasks), `${row.run}: progress`, row.live ? "" : "good", (row.failed || 0) / Math.max(1, row.tasks))),
      cell("Spent", "num", money(row.spent, row.currency || ""), row.budget !== null && row.budget !== undefined && el("small", `of ${num(row.budget)}`), row.held > 0 && el("small", `${num(row.held)} held`)),
      cell("Took", "num", fan ? `≈ ${time(fan.end_s.p50)}` : row.took_s === null ? "" : time(row.took_s), row.deadline_s && el("small", `deadline ${time(row.deadline_s)}`)),
      cell("Odds", "num", odds === null || odds === undefined ? "" : el("span", percent(odds), odds < 0.5 ? "bad" : odds < 0.9 ? "warn" : "good")),
      cell("Begun", "when", moment(row.created)));
    lines.set(row.run, { row, node });
    return node;
  };

  const showHeads = () => heads.replaceChildren(...COLUMNS.map(([word, key]) => {
    if (key === "choose") return make("th", { scope: "col" }, el("span", "Compare", "unseen"));
    const now = asked.sort === key;
    return make("th", { scope: "col", class: ["spent", "end", "odds"].includes(key) ? "num" : null, "aria-sort": now ? (asked.descending ? "descending" : "ascending") : null },
      button(word, () => { asked.descending = now ? !asked.descending : key === "created" || key === "spent"; asked.sort = key; showHeads(); show(); }, `sort${now ? asked.descending ? " down" : " up" : ""}`));
  }));

  const show = () => {
    const words = asked.search.toLowerCase().split(/\s+/).filter(Boolean);
    const value = VALUE[asked.sort], sign = asked.descending ? -1 : 1;
    const found = [...rows.values()].filter((row) => {
      if (asked.state && row.state !== asked.state) return false;
      const text = [row.run, row.campaign, row.note, ...row.tags].join(" ").toLowerCase();
      return words.every((word) => text.includes(word));
    }).sort((a, b) => { const x = value(a), y = value(b); return x < y ? -sign : x > y ? sign : 0; });
    const held = document.activeElement;
    body.replaceChildren(...found.slice(0, 1000).map(line));
    if (held && held.isConnected && held !== document.activeElement) held.focus();
    const states = [...new Set([...rows.values()].map((row) => row.state))].sort();
    if (states.join() !== state.dataset.states) {
      state.dataset.states = states.join();
      state.replaceChildren(make("option", { value: "" }, "All states"), ...states.map((one) => make("option", { value: one }, one.replaceAll("-", " "))));
      state.value = asked.state;
    }
    count.textContent = found.length === rows.size ? `${whole(rows.size)} ${rows.size === 1 ? "run" : "runs"}` : `${whole(found.length)} of ${whole(rows.size)} runs`;
    table.hidden = !found.length;
    empty.hidden = Boolean(found.length);
    if (!found.length) empty.replaceChildren(...(rows.size ? [el("p", "No run matches.")] : [el("h2", "There are no runs yet"), make("p", { class: "note" }, "Begin one here under ", link("Plan", "#/plan"), ", or in a terminal: ", el("code", "bursar run campaign.toml"))]));
  };

  let pending = 0;
  const later = () => { pending = pending || requestAnimationFrame(() => { pending = 0; show(); }); };
  search.addEventListener("input", () => { asked.search = search.value; later(); });
  state.addEventListener("change", () => { asked.state = state.value; later(); });
  showHeads();

  let end = () => {}, closed = false;
  const load = async () => {
    const said = await source.runs();
    if (closed) return;
    folder.textContent = said.folder;
    rows.clear();
    for (const row of said.runs) rows.set(row.run, row);
    show();
  };
  const begin = async () => {
    try { await load(); } catch (error) { if (!closed) host.append(el("p", error.message, "problem")); return; }
    document.documentElement.dataset.drawn = performance.now().toFixed(0);
    if (closed || !source.watchRuns) return;
    let first = true;
    end = source.watchRuns((event, said) => {
      if (event === "hello" && !first) load().catch(() => {}); // after a break, what was missed
      first = false;
      if (event !== "runs") return;
      for (const row of said.changed) rows.set(row.run, row);
      for (const name of said.gone) { rows.delete(name); chosen.delete(name); }
      later();
    });
  };
  begin();
  return { close() { closed = true; end(); cancelAnimationFrame(pending); } };
};
