// Money: accounts of the ledger with their statements, and how forecasts came out.

import { button, el, make, section, table } from "./elements.js";
import { exact, moment, num, percent, whole } from "./format.js";

const shown = (name, value) => value === null || value === undefined ? "" : typeof value === "boolean" ? (value ? "yes" : "no")
  : typeof value === "number" ? (/(^|_)(time|at|created|begin|end)$/.test(name) && value > 1e8 ? moment(value) : Number.isInteger(value) && /micro/.test(name) ? exact(value) : num(value, 8))
    : typeof value === "object" ? JSON.stringify(value) : String(value);

// Any rows of the ledger as a table: fields that no row has are left out.
const rowsOf = (rows, label) => {
  const names = [...new Set(rows.flatMap(Object.keys))].filter((name) => rows.some((row) => row[name] !== null && row[name] !== "" && !(Array.isArray(row[name]) && !row[name].length)));
  const numeric = (name) => rows.every((row) => row[name] === null || row[name] === undefined || typeof row[name] === "number");
  return table(names.map((name) => (numeric(name) ? "#" : "*") + name.replaceAll("_", " ")), rows.map((row) => names.map((name) => shown(name, row[name]))), "None.", label);
};

export const moneyView = (source, host) => {
  let closed = false;
  const accounts = make("div", { class: "part" }, el("p", "Reading the ledger …", "note")), statement = make("div"), record = make("div", { class: "part" }, el("p", "Reading the record …", "note"));
  host.append(make("div", { class: "head" }, make("div", {}, el("h1", "Money"), el("p", "The ledger over all runs, and how well runs were forecast.", "lead"))),
    make("div", { class: "grid" }, section("Accounts", { id: "accounts", wide: true }, accounts, statement), section("Forecasts kept", { id: "record", wide: true }, record)));

  const open = async (name) => {
    statement.replaceChildren(el("p", "Reading the statement …", "note"));
    try {
      const said = await source.statement(name);
      if (closed) return;
      const lists = Object.entries(Array.isArray(said) ? { rows: said } : said).filter(([, value]) => Array.isArray(value) && value.length && typeof value[0] === "object");
      const plain = Array.isArray(said) ? [] : Object.entries(said).filter(([, value]) => typeof value !== "object");
      statement.replaceChildren(el("h3", `Statement of ${name}`), make("dl", { class: "facts" }, plain.map(([key, value]) => make("div", {}, el("dt", key.replaceAll("_", " ")), el("dd", shown(key, value))))),
        ...lists.flatMap(([key, value]) => [el("h3", key.replaceAll("_", " ")), rowsOf(value, key)]));
    } catch (error) { if (!closed) statement.replaceChildren(el("p", error.message, "problem")); }
  };
  const load = async () => {
    const said = await source.money();
    if (closed) return;
    const rows = said.accounts && (Array.isArray(said.accounts) ? said.accounts : said.accounts.accounts) || null;
    if (!rows || !rows.length) { accounts.replaceChildren(make("p", { class: "note" }, "There is no ledger yet. ", el("code", "bursar ledger open NAME"), " creates one; runs with ", el("code", "--account NAME"), " are paid from it.")); return; }
    accounts.replaceChildren(rowsOf(rows, "accounts"));
    const names = rows.map((row) => row.account ?? row.name);
    [...accounts.querySelectorAll("tbody tr")].forEach((line, i) => {
      if (names[i] && line.cells[0].textContent === String(names[i])) line.cells[0].replaceChildren(button(names[i], () => open(names[i]), "as-link"));
    });
  };
  const loadRecord = async () => {
    const said = await source.forecasts();
    if (closed) return;
    if (!said || !said.forecasts) { record.replaceChildren(el("p", "No forecast was kept yet.", "note")); return; }
    const groups = (part) => part && part.groups ? part.groups.map((g) => [`${g.by === "all" ? "all" : `${g.by}: ${g.name}`}`, whole(g.runs), whole(g.forecasts), percent(g.held_50), percent(g.held_90), percent(g.median_error)]) : [];
    const heads = ["*of", "#runs", "#forecasts", "#held of 50 %", "#held of 90 %", "#median error"];
    record.replaceChildren(el("p", `${whole(said.forecasts)} forecasts were kept, ${whole(said.open)} without an outcome yet. Intervals of 50 and 90 % should hold half and nine in ten.`, "note"),
      make("div", { class: "pair" }, make("div", {}, el("h3", "End"), table(heads, groups(said.end), "None.", "forecasts of the end")), make("div", {}, el("h3", "Cost"), table(heads, groups(said.cost), "None.", "forecasts of the cost"))));
  };
  const failed = (place) => (error) => { if (!closed) place.replaceChildren(el("p", error.message, "problem")); };
  Promise.all([load().catch(failed(accounts)), loadRecord().catch(failed(record))]).then(() => { document.documentElement.dataset.drawn = performance.now().toFixed(0); });
  return { close() { closed = true; } };
};
