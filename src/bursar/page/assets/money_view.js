// Money: accounts of the ledger with their statements, and how forecasts came out.

import { button, el, make, section, table } from "./elements.js";
import { purchaseSections } from "./bought.js";
import { exact, moment, percent, whole } from "./format.js";

// A movement of money: what comes in has its sign, too.
const amount = (micros) => micros === null || micros === undefined ? "" : exact(micros);
const signed = (micros) => el("span", `${micros > 0 ? "+" : ""}${exact(micros)}`, micros < 0 ? "bad" : micros > 0 ? "good" : "");

export const moneyView = (source, host) => {
  let closed = false;
  const accounts = make("div", { class: "part" }, el("p", "Reading the ledger …", "note")), statement = make("div"), bought = make("div", { class: "grid" }), record = make("div", { class: "part" }, el("p", "Reading the record …", "note"));
  host.append(make("div", { class: "head" }, make("div", {}, el("h1", "Money"), el("p", "The ledger over all runs, and how well runs were forecast.", "lead"))),
    make("div", { class: "grid" }, section("Accounts", { id: "accounts", wide: true }, accounts), section("Forecasts kept", { id: "record", wide: true }, record)), bought);

  const open = async (name) => {
    statement.replaceChildren(el("p", "Reading the statement …", "note"));
    try {
      const said = await source.statement(name);
      if (closed) return;
      const fact = (word, micros) => make("div", {}, el("dt", word), el("dd", `${amount(micros)} ${said.currency}`));
      statement.replaceChildren(el("h3", `Statement of ${said.account}`),
        make("dl", { class: "facts" }, fact("At first", said.opening_micros), fact("Now", said.closing_micros), fact("Held for runs", said.held_micros)),
        make("div", { class: "pair" },
          make("div", {}, el("h3", "With whom"), table(["*account", `#${said.currency}`], said.parties.map((one) => [one.party, signed(one.amount_micros)]), "Nothing has moved.", "sums by account")),
          make("div", {}, el("h3", "Movements"), table(["when", "kind", "*with", "*for", `#${said.currency}`, "#balance"],
            said.lines.slice(-500).reverse().map((one) => [moment(one.time), one.kind, one.party, [one.agreement, one.memo].filter(Boolean).join(" · "), signed(one.amount_micros), amount(one.balance_micros)]), "Nothing has moved.", "movements"))));
    } catch (error) { if (!closed) statement.replaceChildren(el("p", error.message, "problem")); }
  };
  const load = async () => {
    const said = await source.money(), { accounts: book } = said;
    if (closed) return;
    bought.replaceChildren(...purchaseSections(said));
    if (!book || !book.accounts.length) { accounts.replaceChildren(make("p", { class: "note" }, "There is no ledger yet. ", el("code", "bursar ledger open NAME"), " creates one; runs with ", el("code", "--account NAME"), " are paid from it.")); return; }
    const quota = (one) => one.quota_micros === null ? "" : `${amount(one.used_micros)} of ${amount(one.quota_micros)} by ${one.quota_per}`;
    accounts.replaceChildren(el("p", `${exact(book.granted_micros)} ${book.currency} were granted in all; the book has ${whole(book.rows)} rows.`, "note"),
      table(["*account", "kind", "group", `#balance, ${book.currency}`, "#held for runs", "#quota used", "*grants that end"],
        book.accounts.map((one) => [button(one.name, () => open(one.name), "as-link"), one.kind, one.group, amount(one.balance_micros), amount(one.held_micros), quota(one),
          one.grants.map((grant) => `${amount(grant.left_micros)} left until ${moment(grant.end)}`).join(", ")]), "None.", "accounts"), statement);
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
