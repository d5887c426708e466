// The tasks of a run: a table with their parameters and results, searched, filtered and sorted.

import { el, make, pill } from "./elements.js";
import { bytes, count as counted, num, runAddress, time, whole } from "./format.js";
import { VirtualTable } from "./virtual_table.js";

const WORDS = { number: "No.", task: "Task", name: "Kind", status: "State", attempts: "Attempts", site: "Site", start_s: "Start", runtime_s: "Run time", user_s: "User time", system_s: "System time", max_rss: "Memory", exit_code: "Exit status", reason: "Reason", reused_from: "Reused from" };
const WIDTH = { number: 64, task: 190, status: 112, attempts: 76, site: 96, reason: 240, start_s: 100, runtime_s: 92, max_rss: 84 };
const HIDDEN = new Set(["number", "name", "user_s", "system_s", "exit_code", "reused_from"]);
const NUMBERS = new Set(["number", "attempts", "start_s", "runtime_s", "user_s", "system_s", "max_rss", "exit_code"]);
const STATES = ["succeeded", "failed", "running", "not-run", "skipped", "timed-out", "lost", "cancelled"];
const REFRESH = 2000; // milliseconds between two looks at a run that goes on

const chosen = new Map(); // columns that the reader chose, by name, kept while the page is open

export const tasksView = (source, host, session, query) => {
  const served = Boolean(source.task); // a page that holds its data has no view of one task, and no conditions
  const asked = { state: query.get("state") || "", search: query.get("search") || "", where: "", sort: "", descending: false };
  const search = make("input", { type: "search", placeholder: "Search task, parameter, reason", "aria-label": "Search tasks", value: asked.search });
  const state = make("select", { "aria-label": "State" }, make("option", { value: "" }, "All states"), STATES.map((one) => make("option", { value: one, selected: one === asked.state }, one.replaceAll("-", " "))));
  const where = make("input", { class: "where", placeholder: "Condition: runtime_s > 2", "aria-label": "Condition on columns, as of bursar tasks --where", autocomplete: "off", spellcheck: "false" });
  const count = make("span", { class: "note", role: "status" });
  const problem = make("p", { class: "problem", role: "alert", hidden: true });
  const columns = make("div", { class: "menu" }), menu = make("details", { class: "columns" }, el("summary", "Columns"), columns);
  const card = make("div", { class: "card" });
  host.append(make("div", { class: "tools" }, search, state, served && where, menu, count), problem, card);

  // The end of a long name tells tasks apart, so the middle is left out.
  const taskName = (id, number) => {
    const cut = id.length - 10, parts = id.length < 24 ? [id] : [el("span", id.slice(0, cut), "start"), el("span", id.slice(cut))];
    return served ? make("a", { href: runAddress(session.name, "tasks", number), class: "task-name", title: id }, parts)
      : make("span", { class: "task-name", title: id }, parts);
  };

  const isShown = (name) => chosen.get(name) ?? !HIDDEN.has(name);
  const table = new VirtualTable(card, {
    label: "Tasks",
    fetch: async (offset, limit) => {
      const said = await source.tasks(session.name, { ...asked, offset, limit });
      problem.hidden = true;
      const held = said.held ?? said.total;
      count.textContent = (said.matched === held ? counted(held, "task") : `${whole(said.matched)} of ${counted(held, "task")}`)
        + (held < said.total ? `: the first of ${whole(said.total)}; results.jsonl has all` : "");
      return said;
    },
    shown: (names) => {
      showMenu(names);
      return names.map((key, index) => ({ key, index })).filter(({ key }) => key === "task" || isShown(key)).map(({ key, index }) => {
        const word = WORDS[key] || key.replace(/^(parameters|results)\./, "");
        return { key, index, word, width: WIDTH[key] || Math.min(200, 60 + 8 * word.length), grow: key === "task" || key === "reason", kind: NUMBERS.has(key) ? "num" : key.startsWith("parameters.") ? "parameter" : key.startsWith("results.") ? "result" : null };
      });
    },
    cell: (row, { key, index }) => {
      const value = row[index];
      if (key === "task") return taskName(String(value), row[0]);
      if (value === null || value === undefined || value === "") return "";
      if (key === "status") return pill(value);
      if (key.endsWith("_s")) return time(value);
      if (key === "max_rss") return bytes(value);
      return typeof value === "number" ? num(value, 6) : typeof value === "object" ? JSON.stringify(value) : String(value);
    },
    sort: (key) => {
      if (asked.sort === key && asked.descending) { asked.sort = ""; asked.descending = false; }
      else { asked.descending = asked.sort === key; asked.sort = key; }
      table.showHeads({ key: asked.sort, descending: asked.descending });
      table.refresh({ top: true });
    },
    failed: (error) => { problem.textContent = error.message; problem.hidden = false; },
  });

  const showMenu = (names) => {
    if (columns.dataset.names === names.join()) return;
    columns.dataset.names = names.join();
    columns.replaceChildren(...names.filter((name) => name !== "task").map((name) => {
      const box = make("input", { type: "checkbox" });
      box.checked = isShown(name);
      box.addEventListener("change", () => { chosen.set(name, box.checked); table.showHeads(); });
      return make("label", {}, box, WORDS[name] || name.replace(".", ": "));
    }));
  };
  menu.addEventListener("keydown", (e) => { if (e.key === "Escape") { menu.open = false; menu.querySelector("summary").focus(); } });
  const away = (e) => { if (!menu.contains(e.target)) menu.open = false; };
  document.addEventListener("pointerdown", away);

  let timer = 0;
  const typed = () => { clearTimeout(timer); timer = setTimeout(() => { Object.assign(asked, { search: search.value, state: state.value, where: where.value.trim() }); table.refresh({ top: true }); }, 200); };
  for (const input of [search, where]) input.addEventListener("input", typed);
  state.addEventListener("change", typed);
  table.refresh();

  let due = 0;
  return {
    // Rows are asked for anew when the run has gone on, not more often than one can read.
    update(parts) {
      if (due || !parts.some((part) => part === "bars" || part === "running" || part === "state")) return;
      due = setTimeout(() => { due = 0; table.refresh(); }, REFRESH);
    },
    close() { clearTimeout(timer); clearTimeout(due); document.removeEventListener("pointerdown", away); table.close(); },
  };
};
