// A campaign that is pasted or uploaded: its plans, their odds, why one is chosen; then its begin.

import { button, el, make, section, announce } from "./elements.js";
import { count, money, percent, time, whole } from "./format.js";
import { ask, field, toast } from "./dialogs.js";
import { RunView } from "./run_view.js";
import { runAddress } from "./runs_view.js";

const EXAMPLE = `[campaign]
name = "sweep"
command = "echo {x}"

[parameters]
x = { from = 1, to = 20, step = 1 }

[goal]
deadline = "10 min"
budget = "40 SU"
`;
const kept = { text: "", name: "campaign.toml", folder: "", sites: "", deadline: "", budget: "", confidence: "" }; // while the page is open

export const planView = (source, host) => {
  const inputs = {};
  const input = (name, placeholder) => {
    inputs[name] = make("input", { id: `plan-${name}`, placeholder, value: kept[name], autocomplete: "off", spellcheck: "false" });
    return inputs[name];
  };
  const text = make("textarea", { id: "plan-text", rows: "14", spellcheck: "false", placeholder: EXAMPLE, class: "code" });
  text.value = kept.text;
  const upload = make("input", { type: "file", id: "plan-file", accept: ".toml,.pln,.jdl,.json,.xml" });
  const go = make("button", { type: "submit", class: "primary" }, "Plan");
  const problem = make("p", { class: "problem", role: "alert", hidden: true });
  const place = make("div", { class: "place" });
  const form = make("form", { class: "plan" },
    make("div", { class: "field" }, make("label", { for: "plan-text" }, "Campaign"), text),
    make("div", { class: "side" }, field("Or a file of yours", upload), field("Name of the file", input("name", "campaign.toml"), "its end says the format: .toml, .pln, .jdl, .json, .xml"),
      make("div", { class: "two" }, field("Deadline", input("deadline", "as in the campaign")), field("Budget", input("budget", "as in the campaign"))),
      make("div", { class: "two" }, field("Confidence", input("confidence", "0.9")), field("Sites file", input("sites", "this machine"))),
      field("Folder", input("folder", "that of the dashboard"), "where paths of the campaign begin"), problem, make("div", { class: "buttons" }, button("Example", () => { text.value = EXAMPLE; text.focus(); }), go)));
  host.append(make("div", { class: "head" }, make("div", {}, el("h1", "Plan a campaign"), el("p", "See what a campaign would take and cost, and how sure that is, before anything runs.", "lead"))), make("section", { "aria-label": "Campaign" }, form), place);
  upload.addEventListener("change", async () => {
    const [file] = upload.files;
    if (!file) return;
    text.value = await file.text();
    inputs.name.value = file.name;
  });

  let view = null, closed = false, turn = 0;
  const campaign = () => {
    kept.text = text.value;
    for (const [name, box] of Object.entries(inputs)) kept[name] = box.value.trim();
    return { ...kept, name: kept.name || "campaign.toml" };
  };

  const start = (asked, doc) => ask({
    title: `Run ${doc.summary.campaign}`, confirm: "Run the campaign",
    body: [el("p", `${count(doc.summary.tasks, "task")} in a process of ${doc.summary.tasks === 1 ? "its" : "their"} own, which goes on without this page.`),
      make("dl", { class: "facts" }, [["Expected to take", time(doc.summary.makespan_s)], ["Expected to cost", money(doc.summary.cost, doc.currency)], ["Deadline", asked.deadline || (doc.summary.deadline_s === null ? "none" : time(doc.summary.deadline_s))], ["Budget", asked.budget || (doc.summary.budget === null ? "none" : money(doc.summary.budget, doc.currency))]].map(([name, value]) => make("div", {}, el("dt", name), el("dd", value))))],
    act: async () => {
      const said = await source.start(asked);
      if (!said || !said.run) throw new Error(`It was not begun: ${said && said.reason || "the goal is out of reach"}.`);
      toast(`${said.run} was begun.`);
      location.hash = runAddress(said.run);
    },
  });

  // A goal that can be reached in place of one that cannot.
  const offers = (asked, doc, currency) => (doc.data.proposal.counter_offers || []).map((offer) => make("li", {},
    offer.kind === "share" ? `Within the goal ${whole(offer.tasks)} of the tasks (${percent(offer.share)}) can be run, in ${time(offer.makespan_s)} for ${money(offer.cost, currency)}. `
      : `All ${whole(offer.tasks)} tasks take ${time(offer.makespan_s)} and cost ${money(offer.cost, currency)}, with a margin of ${time(offer.margin_s)}. `,
    offer.kind === "share" ? button("Run this part …", () => start({ ...asked, accept: "share" }, { currency, summary: { ...doc.summary, tasks: offer.tasks, makespan_s: offer.makespan_s, cost: offer.cost } })) : button("Plan with this", () => {
      if (offer.kind === "time") inputs.deadline.value = `${Math.ceil(offer.makespan_s)} s`;
      if (offer.kind === "budget") inputs.budget.value = `${offer.cost} ${currency}`;
      plan();
    })));

  const plan = async () => {
    const mine = ++turn, asked = campaign();
    problem.hidden = true;
    if (!asked.text.trim()) { problem.textContent = "Paste a campaign, or choose a file."; problem.hidden = false; text.focus(); return; }
    go.disabled = true; go.textContent = "Planning …";
    if (view) view.close();
    view = null;
    place.replaceChildren();
    try {
      const doc = await source.plan(asked);
      if (closed || mine !== turn) return;
      const { proposal } = doc.data, found = offers(asked, doc, doc.currency);
      place.append(make("div", { class: "head" }, make("h2", { class: "large" }, doc.summary.campaign), make("div", { class: "actions" }, source.can.has("start") && proposal.chosen !== null && button("Run this …", () => start(asked, doc), "primary"))));
      if (found.length) place.append(section("The goal is out of reach", { cls: "offers" }, make("ul", {}, found)));
      view = new RunView(place, doc);
      announce(doc.summary.deadline_met === false ? "The goal is out of reach." : "The plan is ready.");
      place.scrollIntoView({ block: "start" });
    } catch (error) {
      if (closed || mine !== turn) return;
      problem.textContent = error.message; problem.hidden = false;
    } finally { go.disabled = false; go.textContent = "Plan"; document.documentElement.dataset.drawn = performance.now().toFixed(0); }
  };
  form.addEventListener("submit", (e) => { e.preventDefault(); plan(); });
  return { close() { closed = true; campaign(); if (view) view.close(); } };
};
