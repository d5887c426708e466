// Views of a service: instances of its user, one instance, the account, and what the service has.

import { button, el, figure, link, list, make, meter, pill, section, stateClass, table } from "./elements.js";
import { ask, toast } from "./dialogs.js";
import { followChosen } from "./follow_output.js";
import { exact, moment, money, num, percent, time, whole } from "./format.js";

const REFRESH = 4000; // milliseconds between two looks at a list that nobody streams
const PAGE = 200; // rows of tasks and results that are fetched at a time

const drawn = () => { document.documentElement.dataset.drawn = performance.now().toFixed(0); };
const stateOf = ({ counts }) => counts.waiting + counts.running ? (counts.running ? "running" : "waiting") : counts.failed ? "failed" : counts.total ? "finished" : "new";
const endedOf = ({ counts }) => counts.succeeded + counts.failed + counts.cancelled + counts.skipped;
const head = (title, lead) => make("div", { class: "head" }, make("div", {}, el("h1", title), el("p", lead, "lead")));
const failedOf = ({ counts }) => counts.total ? counts.failed / counts.total : 0;
const shareOf = (one) => one.counts.total ? endedOf(one) / one.counts.total : 0;
const progress = (one) => [
  make("span", {}, `${whole(endedOf(one))} of ${whole(one.counts.total)}`, one.counts.failed > 0 && el("span", ` · ${whole(one.counts.failed)} failed`, "bad")),
  meter(shareOf(one), `${one.label || one.id}: progress`, ["finished", "failed"].includes(stateOf(one)) ? "good" : "", failedOf(one)),
];
const odds = (share) => share === null || share === undefined ? "" : percent(share);

// Shows what load() gives until the view is left; a refusal is told in its place.
const shown = (place, load, again) => {
  let closed = false, timer = 0;
  const go = async () => {
    try { const made = await load(); if (!closed && made) place.replaceChildren(...[made].flat()); }
    catch (error) { if (!closed) place.replaceChildren(el("p", error.message, "problem")); }
    drawn();
    if (!closed && again) timer = setTimeout(() => document.hidden ? (timer = setTimeout(go, again)) : go(), again);
  };
  go();
  return { go, close() { closed = true; clearTimeout(timer); } };
};

export const instancesView = (source, host) => {
  const place = make("div", {}, el("p", "Asking the service …", "note"));
  let currency = "";
  host.append(head("Instances", "What you have handed over to this service, the newest first."), place);
  const row = (one) => [
    [link(one.label || one.id, `#/runs/${encodeURIComponent(one.id)}`), one.label && el("small", one.id), one.note && el("small", one.note, "said")], [pill(stateOf(one))],
    progress(one), [`${exact(one.spent || 0)} ${currency}`], one.forecast ? [moment(one.forecast.end.p50), el("small", `90 % by ${moment(one.forecast.end.p90)}`)] : [],
    one.forecast ? [odds(one.forecast.deadline_odds)] : [], [moment(one.created)],
  ];
  const one = shown(place, async () => {
    const instances = await source.instances();
    currency ||= (await source.site()).currency;
    instances.sort((a, b) => b.created - a.created);
    return list(["Instance", "State", "Progress", "#Spent", "#Expected end", "#Odds", "#Created"], instances.map(row), "You have no instance. bursar submit makes one.", "instances");
  }, REFRESH);
  return { close: one.close };
};

export const instanceView = (source, host, route) => {
  const id = route.parts[0];
  host.append(make("p", { class: "path" }, link("Instances", "#/runs")));
  const figures = make("dl", { id: "figures", class: "figures" }), note = el("p", "", "note"), tasks = make("div"), output = make("div"), title = el("h1", id), lead = el("p", "", "lead");
  const followed = followChosen(source, id);
  let info = null, closed = false, currency = "", rows = [], after = 0, busy = false, stop = () => {};

  const show = () => {
    const { counts, forecast } = info;
    title.replaceChildren(info.label || info.id, pill(stateOf(info)));
    lead.textContent = info.label ? id : "";
    note.textContent = info.note || "";
    const over = counts.running + counts.waiting === 0;
    canceller.hidden = over;
    running.hidden = over && !followed.isOn();
    if (counts.running) followed.suggest(findRunning);
    const limit = (value, say) => value === undefined || value === null ? "" : say(value);
    figures.replaceChildren(
      figure("State", stateOf(info), { cls: stateClass(stateOf(info)), small: info.expires ? `kept until ${moment(info.expires)}` : "" }),
      figure("Tasks", `${whole(endedOf(info))} of ${whole(counts.total)}`, { small: `${whole(counts.running)} running, ${whole(counts.waiting)} waiting${counts.failed ? `, ${whole(counts.failed)} failed` : ""}`, share: shareOf(info), lost: failedOf(info) }),
      figure("Spent", `${exact(info.spent || 0)} ${currency}`, { small: limit(info.budget, (b) => `budget ${exact(b)} ${currency}`), share: info.budget ? (info.spent || 0) / info.budget : null }),
      ...(forecast ? [
        figure("Expected end", moment(forecast.end.p50), { small: `90 % by ${moment(forecast.end.p90)}${info.deadline ? `\ndeadline ${moment(info.deadline)}, kept with ${odds(forecast.deadline_odds)}` : ""}` }),
        ...(forecast.cost ? [figure("Expected cost", `${exact(forecast.cost.p50)} ${currency}`, { small: `90 % at most ${exact(forecast.cost.p90)}${info.budget !== undefined && info.budget !== null ? `\nbudget kept with ${odds(forecast.budget_odds)}` : ""}` })] : []),
      ] : []));
  };
  const read = async (one, stream) => {
    const task = one.task;
    const box = el("pre", "Reading …");
    output.replaceChildren(section(`Task ${task}: ${stream}`, { id: "output", wide: true }, box));
    // What is long lies in a file of its own.
    const long = (one[`${stream}_size`] || 0) > 0 && !one[stream];
    try { box.textContent = (long ? await source.output(id, task, stream) : one[stream]) || `It printed nothing to ${stream}.`; } catch (error) { box.textContent = error.message; }
    output.scrollIntoView({ block: "nearest" });
  };
  const list = () => {
    const row = (one) => [whole(one.task), one.label || "", pill(one.state), whole(one.attempt ?? 1), one.end ? time(one.end - one.start) : "", one.host || "", one.exit_code ?? "", one.reason || "",
      make("span", {}, button("stdout", () => read(one, "stdout"), "as-link"), " ", button("stderr", () => read(one, "stderr"), "as-link"))];
    tasks.replaceChildren(table(["#Task", "*Label", "State", "#Attempts", "#Took", "Host", "#Exit status", "*Reason", "Output"], rows.slice().reverse().map(row), "No task has ended yet.", "ended tasks"),
      ...(after < info.results ? [button(`Show more of ${whole(info.results)}`, more)] : []));
  };
  const more = async () => {
    if (busy || closed) return;
    busy = true;
    try {
      const page = await source.results(id, after, PAGE);
      if (closed) return;
      rows = rows.concat(page.results); after = page.next;
      list();
    } catch (error) { if (!closed) tasks.replaceChildren(el("p", error.message, "problem")); }
    busy = false;
  };
  const act = (words, confirm, danger, what, done) => async () => {
    if (await ask({ title: words, confirm, danger, act: what })) done();
  };
  // Number of the first task that runs, among the first ones.
  const findRunning = async () => {
    for (let from = 0, pages = 0; from !== null && pages < 5; pages++) {
      const page = await source.tasks(id, from, PAGE), found = page.tasks.find((one) => one.state === "running");
      if (found) return found.task;
      from = page.next;
    }
    return null;
  };
  const canceller = button("Cancel tasks …", act("Cancel all tasks that have not ended? Each still has a result.", "Cancel the tasks", true, () => source.cancel(id), () => toast("The tasks are cancelled.")));
  const running = section("Output of a task that runs", { id: "running", wide: true }, followed.node);
  const buttons = make("div", { class: "actions" }, canceller, button("Delete …", act("Delete this instance with its results and files? This cannot be undone.", "Delete it", true, () => source.destroy(id), () => { location.hash = "#/runs"; }), "danger"));
  host.append(make("div", { class: "head" }, make("div", {}, title, lead), buttons), figures, note, make("div", { class: "grid" }, section("Ended tasks", { id: "tasks", wide: true }, tasks), running), output);

  const begin = async () => {
    try {
      [currency, info] = [(await source.site()).currency, await source.instance(id)];
      if (closed) return;
      show(); await more(); drawn();
      stop = source.watch(id, (event, said) => {
        if (!said || !said.counts) return;
        info = said; show();
        if (rows.length < PAGE && after < info.results) more(); else if (rows.length) list();
      });
    } catch (error) { if (!closed) { figures.replaceChildren(el("p", error.message, "problem")); drawn(); } }
  };
  begin();
  return { close() { closed = true; stop(); followed.close(); } };
};

export const accountView = (source, host) => {
  const place = make("div", {}, el("p", "Asking the service …", "note"));
  host.append(head("Money", "Your account at this service, and what you have agreed on."), place);
  const one = shown(place, async () => {
    const [account, agreements, invoice] = await Promise.all([source.account(), source.agreements(), source.invoice()]);
    const rows = agreements.map((deal) => [deal.id, pill(deal.state), `${whole(deal.ready)} of ${whole(deal.processors)}`, moment(deal.start), time(deal.seconds), `${num(deal.unit_price * 3600)}`, exact(deal.charged), exact(deal.held)]);
    const lines = invoice.lines.map((line) => [line.what, moment(line.since), num(line.processor_seconds), exact(line.amount)]);
    return [
      make("dl", { id: "figures", class: "figures" }, figure("Left", `${exact(account.balance)} ${account.currency}`), figure("Held", `${exact(account.held)} ${account.currency}`), figure("Spent", `${exact(account.spent)} ${account.currency}`)),
      make("div", { class: "grid" },
        section("Agreements", { id: "agreements", wide: true }, table(["*Agreement", "State", "#Processors ready", "From", "#For", `#${account.currency} an hour`, "#Charged", "#Held"], rows, "None.", "agreements")),
        section("Invoice", { id: "invoice", wide: true, note: `Total ${exact(invoice.total)} ${invoice.currency}` }, table(["*What", "From", "#Processor seconds", "#Amount"], lines, "Nothing was charged.", "invoice"))),
    ];
  });
  return { close: one.close };
};

export const serviceView = (source, host) => {
  const place = make("div", {}, el("p", "Asking the service …", "note")), all = make("div", { class: "place" });
  host.append(head("Service", "What it has, what is free and what it costs now."), place, all);
  const one = shown(place, async () => {
    const site = await source.site(), price = site.must_buy ? "by agreement" : money(site.shared_price * 3600, site.currency);
    const rows = site.slots.map((slot) => [slot.start ? `in ${time(slot.start)}` : "now", slot.seconds === null ? "no end" : time(slot.seconds), whole(slot.processors), slot.unit_price === null ? "unknown" : money(slot.unit_price * 3600, site.currency), money(slot.fixed_price, site.currency)]);
    return [
      make("dl", { id: "figures", class: "figures" }, figure("Processors free", `${whole(site.free)} of ${whole(site.processors)}`, { small: site.draining ? "takes no more tasks: it is drained" : "" }), figure("Shared processor hour", price), figure("Speed", num(site.speed)), figure("Version", site.version)),
      make("div", { class: "grid" }, section("On offer", { id: "slots", wide: true }, table(["From", "#For", "#Processors", "#Processor hour", "#Fixed price"], rows, "Nothing is for sale now.", "slots"))),
    ];
  }, REFRESH);
  // Administrators see everybody's; others are refused, and ask once.
  const two = shown(all, async () => {
    let said;
    try { said = await source.overview(); } catch (error) { if (error.status === 403) { two.close(); return null; } throw error; }
    const workers = said.workers.map((w) => [w.name, w.host, el("span", w.connected ? "connected" : "silent", `pill ${w.connected ? "good" : "warn"}`), whole(w.busy), whole(w.processors)]);
    const rows = said.instances.map((one, i) => [said.owners[i], one.label || one.id, pill(stateOf(one)), `${whole(endedOf(one))} of ${whole(one.counts.total)}`, exact(one.spent || 0)]);
    return make("div", { class: "grid" },
      section("Everybody's instances", { id: "all", wide: true, note: said.problem || said.degraded || `${whole(said.finished)} tasks have ended since ${moment(said.since)}.` }, table(["*User", "*Instance", "State", "#Ended", "#Spent"], rows, "None.", "instances of all")),
      section("Workers", { id: "workers", wide: true }, table(["*Worker", "Host", "State", "#Busy", "#Processors"], workers, "No worker is connected.", "workers")));
  }, REFRESH);
  return { close() { one.close(); two.close(); } };
};
