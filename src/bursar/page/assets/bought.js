// What runs have bought at sites: prices over time, requests and processors held, agreements, invoices.

import { el, link, make, pill, section, table } from "./elements.js";
import { count, exact, moment, num, time, whole } from "./format.js";
import { Chart, css, line } from "./plots.js";
import { runAddress } from "./runs_view.js";

const SOURCES = { lease: "paid by a run", deal: "agreed in a market", asked: "asked here" };
const hourly = (price, currency) => price === null || price === undefined ? "unknown" : `${num(price * 3600)} ${currency}`;
const run = (name) => name ? link(name, runAddress(name)) : "";

// Prices of a processor hour over time as steps: each holds until the next is known.
const drawPrices = (chart, rows) => {
  const begin = rows[0][0], now = Date.now() / 1000, currency = rows[0][2];
  const points = [...rows.map((row) => [row[0] - begin, row[1] * 3600]), [now - begin, rows[rows.length - 1][1] * 3600]];
  const f = chart.axes(0, now - begin, 0, Math.max(...points.map((point) => point[1])) * 1.1, { xlabel: `since ${moment(begin)}`, ylabel: `${currency} an hour`, xf: time, yf: (value) => num(value, 3) });
  line(f, points, css("--main"), { step: true });
  chart.find = (x) => {
    const at = f.value(x) + begin, known = rows.filter((row) => row[0] <= at).pop();
    return known && at <= now ? `${moment(at)}\n${hourly(known[1], currency)} (${SOURCES[known[4]] || known[4]})` : "";
  };
};

// The parts of the sites view, and the charts in them, which the view closes: said is the answer of source.sites.
export const useSections = (said) => {
  const found = [], charts = [], prices = Object.entries(said.prices || {});
  if ((said.use || []).length) found.push(section("Used now", { id: "use", wide: true }, table(["*Run", "*Site", "#Asked for", "#Held", "#Busy", "#Idle"],
    said.use.map((one) => [run(one.run), one.site, whole(one.asked), whole(one.held), whole(one.busy), whole(one.idle)]), "None.", "processors of runs")));
  if ((said.pilots || []).length) found.push(section("Requests and processors held", { id: "pilots", wide: true }, table(["*Run", "*Site", "*Lease", "State", "#Processors", "#For", "#Processor hour", "Until"],
    said.pilots.map((one) => [run(one.run), one.site, one.lease, pill(one.state), whole(one.processors), time(one.age_s), hourly(one.unit_price, one.currency), one.until ? moment(one.until) : "given back"]), "None.", "pilots")));
  for (const [site, rows] of prices) {
    // Prices in another currency than that asked now are told by the table only.
    const last = rows[rows.length - 1], alike = rows.filter((row) => row[2] === last[2]), values = alike.map((row) => row[1]);
    const box = make("div", { class: "chart low", role: "img", tabindex: "0", "aria-label": `Price of a processor hour at ${site} over time` });
    charts.push(new Chart(box, (chart) => drawPrices(chart, alike)));
    const least = Math.min(...values), greatest = Math.max(...values), range = least === greatest ? "always the same" : `between ${num(least * 3600)} and ${num(greatest * 3600)}`;
    found.push(section(`Prices of ${site}`, { id: `prices-${site}` }, box, el("p", `Now ${hourly(last[1], last[2])} for a processor hour; ${range} in ${count(rows.length, "record")}.`, "note"),
      table(["When", "#Processor hour", "Source", "*Run"], rows.slice(-20).reverse().map(([at, price, currency, name, source]) => [moment(at), hourly(price, currency), SOURCES[source] || source, run(name)]), "None.", `prices of ${site}`)));
  }
  return { parts: found.length ? [make("div", { class: "grid" }, found)] : [], charts };
};

// The parts of the money view: said is the answer of source.money.
export const purchaseSections = (said) => [
  section("Invoices of runs", { id: "invoices", wide: true }, table(["*Run", "*Sites", "#Total", "Settled"],
    (said.invoices || []).map((one) => [run(one.run), one.sites.map((site) => `${site.site} ${exact(site.amount_micros)}`).join(", "), `${exact(one.total_micros)} ${one.currency}`, one.unsettled.length ? `waits for ${one.unsettled.join(", ")}` : "yes"]), "No run has a bill yet.", "invoices")),
  section("Agreements of runs", { id: "agreements", wide: true }, table(["*Run", "*Site", "*Agreement", "#Processors", "#Processor hour", "#Each time", "From", "To"],
    (said.agreements || []).slice(0, 100).map((one) => [run(one.run), one.site, one.agreement || one.lease, whole(one.processors), hourly(one.unit_price, one.currency), one.fixed_price ? num(one.fixed_price) : "", moment(one.start), one.end ? moment(one.end) : "goes on"]), "No run has bought anything yet.", "agreements")),
];
