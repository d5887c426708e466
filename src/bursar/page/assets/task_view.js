// One task: what it is, its attempts, why it ran where it ran, and what it printed.

import { button, el, link, make, pill, section, table } from "./elements.js";
import { bytes, num, time, whole } from "./format.js";
import { runAddress } from "./runs_view.js";
import { followOutput } from "./follow_output.js";
import * as actions from "./actions.js";

const MOST = 400000; // characters of output that are shown

export const taskView = (source, host, session, number) => {
  let closed = false, said = null, due = 0, following = null;
  const place = make("div", {}, el("p", "Reading the task …", "note"));
  host.append(place);

  const facts = (pairs) => make("dl", { class: "facts" }, pairs.filter(([, value]) => value !== null && value !== "" && value !== undefined).map(([name, value]) => value.length > 90
    ? make("div", { class: "long" }, el("dt", name), make("dd", {}, make("pre", { class: "command", tabindex: "0", "aria-label": name.slice(0, 60) }, value)))
    : make("div", {}, el("dt", name), make("dd", {}, value))));

  const why = (rows) => rows.map((row) => make("div", { class: "why" },
    make("p", {}, el("b", `Attempt ${row.attempt}`), ` at ${row.site}, ${time(row.at_s)} after the begin: ${row.why}`, row.status && " ", row.status && pill(row.status)),
    row.sites.length > 0 && table(["site", "#price", "#given", "*reason"], row.sites.map((one) => [one.site ?? "", one.price === null || one.price === undefined ? "" : num(one.price), one.given === undefined ? "" : String(one.given), one.reason ?? ""]), "", "sites that were weighed"),
    row.deals.length > 0 && el("pre", row.deals.map((deal) => typeof deal === "string" ? deal : JSON.stringify(deal)).join("\n"))));

  const output = (attempts) => {
    const last = attempts[attempts.length - 1];
    const which = make("select", { "aria-label": "Attempt" }, attempts.map((one) => make("option", { value: one.attempt, selected: one === last }, `attempt ${one.attempt}`)));
    const text = make("pre", { class: "output", tabindex: "0", "aria-label": "Output" }), size = el("span", null, "note"), more = button("Show more", () => read(true), "", { hidden: true });
    let stream = last.status === "succeeded" || !last.stderr_size ? "stdout" : "stderr", next = 0, turn = 0;
    const choice = (name) => button(name, () => { stream = name; show(); }, "choice", { "aria-pressed": "false" });
    const choices = [choice("stdout"), choice("stderr")];
    const read = async (go) => {
      const mine = ++turn;
      try {
        const part = await source.output(session.name, number, stream, which.value, go ? next : 0);
        if (closed || mine !== turn) return;
        next = part.next;
        if (!go) text.textContent = "";
        text.append(part.text);
        text.classList.toggle("nothing", !part.size);
        if (!part.size) text.textContent = "nothing was printed";
        size.textContent = bytes(part.size) + (next < part.size ? `, the first ${bytes(next)} shown` : "");
        more.hidden = next >= part.size || text.textContent.length > MOST;
      } catch (error) { if (!closed && mine === turn) { text.textContent = error.message; size.textContent = ""; } }
    };
    const show = () => { for (const one of choices) one.setAttribute("aria-pressed", String(one.textContent === stream)); read(false); };
    which.addEventListener("change", show);
    show();
    return [make("div", { class: "tools" }, make("div", { class: "choices", role: "group", "aria-label": "Stream" }, choices), attempts.length > 1 && which, size), text, more];
  };

  const show = () => {
    const { attempts } = said, last = attempts[attempts.length - 1];
    const state = said.running ? "running" : last ? last.status : said.reused_from ? "reused" : "not-run";
    const tools = make("div", { class: "actions" });
    if (source.can.has("retry") && !session.doc.isLive && last && last.status !== "succeeded") tools.append(button("Run again …", () => actions.retry(source, session.name, [said.task], 1)));
    const next = (step, word) => { const to = number + step; return to >= 0 && to < session.doc.summary.tasks ? link(word, runAddress(session.name, "tasks", to)) : el("span", word, "note"); };
    if (said.running && !following && source.can.has("follow")) following = followOutput(source, session.name, number, () => { following = null; if (!closed) load().catch(failed); });
    place.replaceChildren(
      make("div", { class: "head" }, make("div", { class: "title" }, make("h2", { class: "large" }, said.task), pill(state)), make("div", { class: "actions" }, tools, make("span", { class: "turn" }, next(-1, "previous"), next(1, "next")))),
      make("div", { class: "grid" },
        section("Task", { id: "task" }, facts([["Kind", said.name], ["Processors", whole(said.processors)], ["Estimate", said.estimate_s === null ? "none" : time(said.estimate_s)],
          ["Took", last ? time(last.runtime_s) : null], ["Most memory", last ? bytes(last.max_rss) : null], ["Waits for", said.after.length ? said.after.slice(0, 20).join(", ") + (said.after.length > 20 ? ` and ${said.after.length - 20} more` : "") : null],
          ["Inputs", said.inputs.join(", ")], ["Outputs", said.outputs.join(", ")], ["Reused from", said.reused_from]]), el("h3", "Command"), make("pre", { class: "command", tabindex: "0", "aria-label": "Command" }, said.command)),
        section("Parameters and results", { id: "parameters" }, Object.keys(said.parameters).length || Object.keys(said.results || {}).length
          ? facts([...Object.entries(said.parameters), ...Object.entries(said.results || {})].map(([name, value]) => [name, typeof value === "object" ? JSON.stringify(value) : String(value)])) : el("p", "None.", "note")),
        section("Attempts", { id: "attempts", wide: true }, table(["#attempt", "state", "site", "lease", "#start", "#took", "#user", "#system", "#memory", "#exit status", "*reason"],
          attempts.map((a) => [a.attempt, pill(a.status), a.site, a.lease, time(a.start_s), time(a.runtime_s), time(a.user_s), time(a.system_s), bytes(a.max_rss), a.exit_code ?? "", a.reason]), said.running ? "The first attempt is running." : "It has not run yet.", "attempts")),
        said.why.length > 0 && section("Why there", { id: "why", wide: true }, ...why(said.why)),
        following && section("Output as it comes", { id: "following", wide: true }, following.node),
        attempts.length > 0 && source.can.has("output") && section("Output", { id: "output", wide: true }, ...output(attempts))));
  };

  const load = async () => {
    const found = await source.task(session.name, number);
    if (closed) return;
    const key = JSON.stringify(found);
    if (said && key === place.dataset.key) return; // what one reads stays where it is
    said = found; place.dataset.key = key.length < 1e6 ? key : "";
    show();
  };
  const failed = (error) => { if (!closed) place.replaceChildren(el("p", error.message, "problem")); };
  load().catch(failed);
  return {
    update(parts) {
      if (due || !said || !parts.some((part) => part === "bars" || part === "running" || part === "state")) return;
      const last = said.attempts[said.attempts.length - 1];
      if (!parts.includes("state") && last && last.final && !said.running) return;
      due = setTimeout(() => { due = 0; load().catch(failed); }, 1000);
    },
    close() { closed = true; clearTimeout(due); following?.close(); },
  };
};

