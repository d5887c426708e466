// What runs have bought at sites: prices over time, requests and processors held, agreements, invoices.

import { el, link, make, pill, section, table } from "./elements.js";
import { exact, moment, num, time, whole } from "./format.js";
import { runAddress } from "./runs_view.js";

const SOURCES = { lease: "paid by a run", deal: "agreed in a market", asked: "asked here" };
const hourly = (price, currency) => price === null || price === undefined ? "unknown" : `${num(price * 3600)} ${currency}`;
const run = (name) => name ? link(name, runAddress(name)) : "";

// The parts of the sites view: said is the answer of source.sites.
export const useSections = (said) => {
  const found = [], prices = Object.entries(said.prices || {});
  if ((said.use || []).length) found.push(section("Used now", { id: "use", wide: true }, table(["*Run", "*Site", "#Asked for", "#Held", "#Busy", "#Idle"],
    said.use.map((one) => [run(one.run), one.site, whole(one.asked), whole(one.held), whole(one.busy), whole(one.idle)]), "None.", "processors of runs")));
  if ((said.pilots || []).length) found.push(section("Requests and processors held", { id: "pilots", wide: true }, table(["*Run", "*Site", "*Lease", "State", "#Processors", "#For", "#Processor hour", "Until"],
    said.pilots.map((one) => [run(one.run), one.site, one.lease, pill(one.state), whole(one.processors), time(one.age_s), hourly(one.unit_price, one.currency), one.until ? moment(one.until) : "given back"]), "None.", "pilots")));
  for (const [site, rows] of prices) {
    const values = rows.map((row) => row[1]), last = rows[rows.length - 1];
    found.push(section(`Prices of ${site}`, { id: `prices-${site}` }, el("p", `Now ${hourly(last[1], last[2])} for a processor hour; between ${num(Math.min(...values) * 3600)} and ${num(Math.max(...values) * 3600)} in ${whole(rows.length)} records.`, "note"),
      table(["When", "#Processor hour", "Source", "*Run"], rows.slice(-20).reverse().map(([at, price, currency, name, source]) => [moment(at), hourly(price, currency), SOURCES[source] || source, run(name)]), "None.", `prices of ${site}`)));
  }
  return found.length ? [make("div", { class: "grid" }, found)] : [];
};

// The parts of the money view: said is the answer of source.money.
export const purchaseSections = (said) => [
  section("Invoices of runs", { id: "invoices", wide: true }, table(["*Run", "*Sites", "#Total", "Settled"],
    (said.invoices || []).map((one) => [run(one.run), one.sites.map((site) => `${site.site} ${exact(site.amount_micros)}`).join(", "), `${exact(one.total_micros)} ${one.currency}`, one.unsettled.length ? `waits for ${one.unsettled.join(", ")}` : "yes"]), "No run has a bill yet.", "invoices")),
  section("Agreements of runs", { id: "agreements", wide: true }, table(["*Run", "*Site", "*Agreement", "#Processors", "#Processor hour", "#Each time", "From", "To"],
    (said.agreements || []).slice(0, 100).map((one) => [run(one.run), one.site, one.agreement || one.lease, whole(one.processors), hourly(one.unit_price, one.currency), one.fixed_price ? num(one.fixed_price) : "", moment(one.start), one.end ? moment(one.end) : "goes on"]), "No run has bought anything yet.", "agreements")),
];
