// One run: figures, charts, schedule, failures, bill. The same for a run that goes on, one that has
// ended, and a plan that nobody has run.

import { bytes, count, exact, money, num, percent, time, whole } from "./format.js";
import { announce, el, figure, link, make, pill, section, table } from "./elements.js";
import { Chart } from "./plots.js";
import { drawBusy, drawForecastCost, drawForecastEnd, drawFront, drawSpend, truthOf } from "./run_charts.js";
import { Gantt } from "./gantt.js";

const chartBox = (id, label, low) => make("div", { id, class: low ? "chart low" : "chart", role: "img", tabindex: "0", "aria-label": label });
const legendBox = (id) => make("div", { id, class: "legend" });

export class RunView {
  // address(number): where a task is shown; without it names are no links.
  constructor(host, doc, { address } = {}) {
    this.host = host; this.doc = doc; this.address = address;
    this.charts = {};
    this.told = "";
    this.build();
  }

  build() {
    const { doc, host } = this, { data, summary: S } = doc, ofRun = !doc.isPlan;
    this.lead = el("p", null, "lead");
    this.figures = make("dl", { class: "figures", id: "figures" });
    this.reason = el("p", null, "note");
    this.bounds = el("p", null, "note");
    this.options = el("div");
    this.parts = {};
    const part = (name, node) => this.parts[name] = node || el("div", null, "part");
    const chart = (id, label, draw, low) => {
      const box = chartBox(id, label, low), marks = legendBox(`${id}-legend`);
      this.charts[id] = new Chart(box, (c) => draw(c, this.doc, marks));
      return [marks, box];
    };
    const grid = make("div", { class: "grid" });
    // Where jobs are sent one by one there is no curve, and the sentence that says so is all there is.
    const curve = (data.proposal.front || []).length > 0;
    grid.append(section(curve || !ofRun ? "Trade-off" : "How it runs", { id: "trade-off", wide: !ofRun || !curve }, this.reason,
      ...(curve || !ofRun ? chart("front", "Makespan against cost of every plan on the curve", drawFront) : []), this.bounds, this.options));
    if (ofRun) grid.append(section("Spend", { id: "spending", wide: !curve, note: "Paid and accrued, and what is set aside for the worst case." },
      ...chart("spend", "Money spent and held over time, and the budget", drawSpend), part("waits")));
    const box = make("div", { id: "gantt", tabindex: "0", role: "application", "aria-label": `Schedule of ${count(S.tasks, "task")}, ${ofRun ? "planned against actual" : "as planned"}. Plus and minus zoom, arrows move, 0 shows all.` });
    const marks = legendBox("legend");
    const planned = [...doc.planned.values()].some((bars) => bars.count), empty = doc.isPlan && !planned; // no plan is chosen
    grid.append(this.schedule = section("Schedule", { id: "schedule", wide: true, note: `${ofRun && planned ? "Planned above, actual below, on one clock. " : ""}Drag to move; click, then wheel or + and − to zoom, 0 for all; hover names a task.` }, marks, box));
    this.gantt = new Gantt(box, marks, doc, { onTask: this.address && ((task) => { location.hash = this.address(task); }) });
    grid.append(this.busySection = section("Processors busy", { id: "busy-processors", wide: true }, ...chart("busy", "Processors busy over time, planned and actual", drawBusy, true), this.bySite = el("div", null, "by-site")));
    this.busySites();
    this.schedule.hidden = this.busySection.hidden = empty;
    if (ofRun) {
      this.forecastNote = el("p", null, "note");
      this.forecast = section("Forecast", { id: "forecasts", wide: true }, this.forecastNote, make("div", { class: "pair" },
        make("div", {}, el("h3", "End of the run"), ...chart("forecast", "Forecast end of the run over time, the deadline and the true end", drawForecastEnd, true)),
        this.costFan = make("div", {}, el("h3", "Cost"), ...chart("forecast-cost", "Forecast cost of the run over time, the budget and the true cost", drawForecastCost, true))));
      grid.append(this.forecast,
        section("Failures", { id: "failed", wide: true }, part("failures")),
        section("By kind of task", { id: "by-kind" }, part("kinds")),
        section("Longest tasks", { id: "longest" }, part("slowest")),
        section("Bill", { id: "bill" }, part("bill")),
        section("Messages", { id: "said" }, part("messages")));
    }
    host.append(this.lead, this.figures, grid);
    this.fill();
    this.paint();
  }

  // Draws now what was never drawn, so that the page is whole when it is first seen.
  paint() {
    for (const chart of Object.values(this.charts)) chart.paint();
    this.gantt.chart.paint();
  }

  // With several sites each has its own chart of processors.
  busySites() {
    const { sites } = this.doc.data;
    if (sites.length < 2 || sites.length > 12) return;
    for (const site of sites) {
      const id = `busy-${site}`;
      if (this.charts[id]) continue;
      const box = make("div", { class: "chart low", role: "img", tabindex: "0", "aria-label": `Processors asked, held and busy at ${site}` }), marks = el("div", null, "legend");
      this.charts[id] = new Chart(box, (c) => drawBusy(c, this.doc, marks, site));
      this.bySite.append(make("div", {}, el("h3", site), marks, box));
    }
  }

  // What the events changed is drawn again; names as RunDocument.apply returns them.
  update(parts) {
    const { charts } = this;
    const has = (...names) => names.some((name) => parts.includes(name));
    if (has("bars", "running", "state")) this.gantt.changed();
    for (const [id, chart] of Object.entries(charts)) {
      if (id.startsWith("busy") ? has("bars", "running", "money", "parts", "state")
        : id === "spend" ? has("money", "snapshot", "state")
          : id.startsWith("forecast") ? has("forecast", "snapshot", "state")
            : has("snapshot", "parts", "state")) chart.changed();
    }
    if (has("bars")) this.busySites();
    if (has("snapshot", "running", "parts", "money", "state")) this.fillHead();
    if (has("forecast", "state")) this.fillForecast();
    if (has("parts", "state")) this.fillTables();
    if (has("messages")) this.fillMessages();
  }

  fill() {
    this.fillHead(); this.fillFront(); this.fillTables(); this.fillMessages(); this.fillForecast();
  }

  fillHead() {
    const { doc } = this, { data, summary: S } = doc, cash = (x) => money(x, S.currency);
    this.lead.textContent = `${count(S.tasks, "task")}${S.processors ? `, ${count(S.processors, "processor")}` : ""}` + (data.sites.length > 1 ? ` at ${data.sites.length} sites` : "") + (S.deadline_s ? `, deadline ${time(S.deadline_s)}` : "");
    const box = [];
    const deadline = (met) => [met === null ? "open" : met ? "met" : "missed", { small: time(S.deadline_s), cls: met === null ? "" : met ? "good" : "bad" }];
    if (doc.isPlan) {
      if (S.makespan_s !== null) box.push(figure("makespan", time(S.makespan_s)));
      if (S.cost !== null) box.push(figure("cost", cash(S.cost), { small: S.budget === null ? "" : `budget ${num(S.budget)}` }));
      if (S.deadline_s !== null) box.push(figure("deadline", S.deadline_met ? "can be met" : "out of reach", { small: time(S.deadline_s), cls: S.deadline_met ? "good" : "bad" }));
      const odds = data.proposal.chosen && data.proposal.front[data.proposal.chosen.index]?.forecast?.odds;
      if (odds !== null && odds !== undefined) box.push(figure("odds of deadline and budget", percent(odds), { share: odds }));
    } else if (doc.isLive) box.push(...this.liveFigures(cash));
    else {
      box.push(figure("state", S.state, { cls: { finished: "good", failed: "bad", "budget-stopped": "warn", interrupted: "warn" }[S.state] }));
      box.push(figure("succeeded", `${whole(S.succeeded)} of ${whole(S.tasks)}`, { small: [S.failed && `${whole(S.failed)} failed`, S.skipped && `${whole(S.skipped)} skipped`, S.not_run && `${whole(S.not_run)} not run`].filter(Boolean).join(", "), cls: S.failed ? "bad" : "" }));
      const foreseen = S.processors ? "planned " : "expected "; // a pool follows no plan
      box.push(figure("makespan", time(S.makespan_s), { small: foreseen + time(S.predicted_makespan_s) }));
      box.push(figure("cost", cash(S.cost), { small: foreseen + num(S.predicted_cost) + (S.budget === null ? "" : `\nbudget ${num(S.budget)}`), cls: S.budget !== null && S.cost > S.budget ? "bad" : "" }));
      if (S.deadline_s !== null) box.push(figure("deadline", ...deadline(S.deadline_met)));
      const copies = S.copies ? S.copies.made : 0, repeated = S.attempts - S.succeeded - S.failed - copies;
      box.push(figure("attempts", whole(S.attempts), { small: [repeated > 0 && `${whole(repeated)} repeated`, copies && `${copies === 1 ? "1 copy" : `${whole(copies)} copies`}, ${whole(S.copies.faster)} faster`].filter(Boolean).join("\n") }));
    }
    this.figures.replaceChildren(...box);
  }

  liveFigures(cash) {
    const { doc } = this, { summary: S, snapshot: now } = doc, c = doc.counts, box = [];
    const ended = c.succeeded + c.failed + c.skipped;
    box.push(figure("progress", `${whole(ended)} of ${whole(c.total)}`, { share: ended / Math.max(1, c.total), lost: c.failed / Math.max(1, c.total),
      small: [`${whole(c.running)} running`, `${whole(c.waiting)} waiting`, c.failed && `${whole(c.failed)} failed`, c.skipped && `${whole(c.skipped)} skipped`].filter(Boolean).join(", ") }));
    const elapsed = now ? now.elapsed : doc.data.end, told = now && now.forecast || S.forecast;
    // A run that goes on past the end of nine of ten has shown its forecast wrong.
    const isOutrun = told && elapsed > told.end_s.p90, fan = isOutrun ? null : told;
    box.push(figure("elapsed", time(elapsed), { small: S.deadline_s === null ? "" : `deadline ${time(S.deadline_s)}`, share: S.deadline_s ? elapsed / S.deadline_s : null, warn: S.deadline_s && elapsed > S.deadline_s ? "bad" : "" }));
    if (fan) {
      const late = S.deadline_s !== null && fan.end_s.p50 > S.deadline_s;
      box.push(figure("expected end", time(fan.end_s.p50), { small: `90 % by ${time(fan.end_s.p90)}`, cls: late ? "bad" : "" }));
    } else if (isOutrun) box.push(figure("expected end", "unknown", { small: `longer than forecast: 90 % by ${time(told.end_s.p90)}`, cls: "warn" }));
    else box.push(figure("expected end", time(now ? now.current_finish : S.predicted_makespan_s), { small: S.predicted_makespan_s ? `planned ${time(S.predicted_makespan_s)}` : "" }));
    const spent = now ? now.spent : S.cost, budget = now ? now.budget : S.budget;
    box.push(figure("spent", cash(spent), { small: budget === null ? "" : `budget ${num(budget)}`, share: budget ? spent / budget : null, warn: budget && spent > budget ? "bad" : "" }));
    if (fan && fan.cost) box.push(figure("expected cost", cash(fan.cost.p50), { small: `90 % at most ${num(fan.cost.p90)}`, cls: budget !== null && fan.cost.p50 > budget ? "bad" : "" }));
    if (fan && fan.odds !== null && fan.odds !== undefined) box.push(figure(S.deadline_s !== null && budget !== null ? "odds of deadline and budget" : S.deadline_s !== null ? "odds of the deadline" : "odds of the budget", percent(fan.odds), { share: fan.odds, cls: fan.odds < 0.5 ? "bad" : fan.odds < 0.9 ? "warn" : "good", warn: fan.odds < 0.5 ? "bad" : fan.odds < 0.9 ? "warn" : "good" }));
    const news = `${Math.floor(10 * ended / Math.max(1, c.total)) * 10} % of the tasks have ended` + (c.failed ? `, ${count(c.failed, "task")} failed` : "");
    if (this.told && news !== this.told) announce(news);
    this.told = news;
    return box;
  }

  fillFront() {
    const { doc } = this, { summary: S, data } = doc, P = data.proposal, B = P.bounds || {};
    this.reason.textContent = !P.reason ? "" : P.chosen || P.feasible !== false ? `Chosen: ${P.reason}.` : `None is chosen: ${P.reason}.`;
    const bounded = (B.makespan_s ?? B.cost ?? null) !== null;
    this.bounds.textContent = !bounded ? "" : `By the estimates, no plan can beat: makespan ${time(B.makespan_s)} (critical path ${time(B.critical_path_s)}, work / processors ${time(B.work_s)}), cost ${money(B.cost, S.currency)}.`;
    // The options of the curve; of many, evenly many and the chosen one.
    const options = P.front || [], picked = P.chosen ? P.chosen.index : -1, every = Math.max(1, Math.ceil(options.length / 24));
    const shown = options.map((o, i) => [o, i]).filter(([, i]) => i % every === 0 || i === options.length - 1 || i === picked);
    const odds = options.some((o) => o.forecast && o.forecast.odds !== null && o.forecast.odds !== undefined);
    const choice = (i) => make("span", { title: i === picked ? "chosen" : null }, i === picked ? "→" : "");
    this.options.replaceChildren(options.length ? table(["chosen", "#processors", "#makespan", "#cost", ...(odds ? ["#odds"] : []), "#utilisation", "*where"],
      shown.map(([o, i]) => [choice(i), whole(o.processors), time(o.makespan_s), money(o.cost, S.currency), ...(odds ? [percent(o.forecast ? o.forecast.odds : null)] : []),
        o.utilisation === null ? "unknown" : percent(o.utilisation), slotsOf(o)]), "", "plans on the curve") : "");
  }

  fillForecast() {
    if (!this.forecast) return;
    const { doc } = this, { summary: S } = doc, fan = doc.data.forecast, truth = truthOf(doc);
    this.forecast.hidden = !fan.length && !doc.isLive;
    this.costFan.hidden = !fan.some((row) => row.length > 4);
    if (!fan.length) { this.forecastNote.textContent = ""; return; }
    const [at, , middle, late] = fan[0], held = fan.filter((f) => truth >= f[1] && truth <= f[3]).length;
    this.forecastNote.textContent = `${at < 1 ? "At the start" : `After ${time(at)}`} the end was expected at ${time(middle)}, with 90 % by ${time(late)}.`
      + (truth === null ? "" : ` It came at ${time(truth)}: ${fan.length === 1 ? `${held ? "inside" : "outside"} the band from 10 to 90 %` : `inside the band from 10 to 90 % of ${held} of ${count(fan.length, "forecast")}`}.`)
      + (truth === null || fan[0].length < 7 || S.cost === null ? "" : ` The cost was expected to be ${money(fan[0][5], S.currency)}, with 90 % at most ${money(fan[0][6], S.currency)}, and was ${money(S.cost, S.currency)}.`);
  }

  fillTables() {
    if (this.doc.isPlan) return;
    const { data } = this.doc, put = (name, ...nodes) => this.parts[name].replaceChildren(...nodes.filter(Boolean));
    put("failures", ...this.failures());
    put("kinds", table(["*kind", "#tasks", "#total", "#median", "#longest", "#processor time", "#memory"],
      data.by_kind.map((r) => [r[0], whole(r[1]), time(r[2]), time(r[3]), time(r[4]), time(r[5]), bytes(r[6])]), "Nothing has succeeded yet.", "kinds of tasks"));
    put("slowest", table(["*task", "*kind", "#took", "#estimate", "#processor time"],
      data.slowest.map((r) => [this.name(r[0]), r[1], time(r[2]), time(r[3]), time(r[4])]), "Nothing has ended yet.", "longest tasks"));
    // What differs from the site's own record by more than rounding is marked.
    const recorded = (r) => r[7] === null ? (r[9] === "bound" ? "none: the most it may have held" : "") : `${Math.round(r[7])}${r[8] === false ? " differs" : ""}`;
    const bill = data.bill;
    put("bill", table(["lease", "site", "#processors", "#held", "#tasks", "#idle and fixed", `#total, ${bill.currency}`, "#processor seconds", "#in the site's record"],
      bill.leases.map((r) => [r[0], r[1], r[2], time(r[3]), exact(r[4]), exact(r[5]), exact(r[6]), whole(r[2] * r[3]), recorded(r)]).concat(
        bill.leases.length ? [["total", "", "", "", "", "", exact(bill.total), "", ""]] : []), "Nothing is paid yet.", "bill"),
    ...bill.sites.map((text) => el("p", text, "note")),
    bill.unsettled.length ? el("p", `Not settled: ${bill.unsettled.join(", ")}`, "note") : null);
    put("waits", ...waits(data.allocations || [], data.bounds || {}));
  }

  // A task's name, as a link where tasks can be shown.
  name(task) {
    if (!this.address) return task;
    this.numbers ||= new Map(this.doc.data.ids.map((id, number) => [id, number]));
    return this.numbers.has(task) ? link(task, this.address(this.numbers.get(task))) : task;
  }

  failures() {
    const { data, summary: S } = this.doc, F = data.failures, groups = S.failures || [], nodes = [];
    const like = (g) => make("div", {}, el("div", g.what), g.first.meaning && el("p", g.first.meaning, "note"));
    if (groups.length) nodes.push(table(["#tasks", "*what they have in common", "*the first", "*its command"],
      groups.map((g) => [whole(g.count), like(g), make("div", {}, make("div", {}, this.name(g.first.task)), el("div", Object.entries(g.first.parameters).map(([k, v]) => `${k}=${v}`).join(", "), "note")), make("code", {}, g.first.command)]), "", "groups of failures"));
    const why = (row) => make("div", {}, el("div", row[3]), row[4] && el("pre", row[4]));
    if (groups.length) nodes.push(el("h3", "Tasks that failed"));
    const rows = table(["*task", "#attempt", "status", "*reason and end of stderr"], F.rows.map((r) => [this.name(r[0]), r[1], pill(r[2]), why(r)]), "None.", "failures");
    nodes.push(rows);
    if (F.tried_again) nodes.push(el("p", `${count(F.tried_again, "more failed attempt")} of tasks that were tried again`, "note"));
    if (F.count > F.rows.length) nodes.push(el("p", `and ${count(F.count - F.rows.length, "more failed task")}; results.jsonl holds the last of each task`, "note"));
    requestAnimationFrame(() => { for (const text of rows.querySelectorAll("pre")) text.scrollTop = 1e6; }); // the end tells
    return nodes;
  }

  fillMessages() {
    if (this.doc.isPlan) return;
    this.parts.messages.replaceChildren(table(["#at", "*message"], this.doc.data.messages.map((m) => [time(m[0]), m[1]]), "None.", "messages"));
  }

  close() {
    for (const chart of Object.values(this.charts)) chart.close();
    this.gantt.close();
  }
}

const slotsOf = (o) => {
  const there = new Map();
  for (const s of o.slots) there.set(s.site, [(there.get(s.site) || [0, s.start_s])[0] + s.processors, Math.min((there.get(s.site) || [0, s.start_s])[1], s.start_s)]);
  return [...there].map(([site, [n, start]]) => `${n} ${site}${start > 0 ? " in " + time(start) : ""}`).join(", ");
};

// What was asked of sites, and how long it waited.
const waits = (allocations, bounds) => {
  const asked = allocations.filter((one) => one.asked_s !== null && one.asked_s !== undefined);
  if (!asked.length) return [];
  const rows = asked.slice(-200).reverse().map((one) => [one.name, one.site, whole(one.processors), time(one.asked_s), one.wait_s === null ? "waits" : time(one.wait_s), one.fate]);
  const kept = Object.entries(bounds).map(([site, [given, held]]) => `${site}: ${whole(held)} of ${count(given, "bound")} on waits held.`).join(" ");
  return [el("h3", "Waits in queues"), kept && el("p", kept, "note"), table(["*request", "site", "#processors", "#asked at", "#waited", "*what became of it"], rows, "", "waits in queues")];
};

