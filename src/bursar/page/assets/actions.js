// What may be done with a run. Every action asks before it acts, and says what came of it.

import { el, make } from "./elements.js";
import { money, num, percent, time } from "./format.js";
import { ask, field, toast } from "./dialogs.js";

const outcome = (said) => {
  const fan = said.forecast, rows = [];
  const row = (name, value, cls) => rows.push(make("div", {}, el("dt", name), el("dd", value, cls)));
  row("Goal", said.feasible ? "within reach" : "out of reach", said.feasible ? "good" : "bad");
  row("Expected end", time(said.expected_finish_s) + (said.deadline_s === null ? "" : `, deadline ${time(said.deadline_s)}`));
  row("Expected cost", money(said.expected_cost, said.currency) + (said.budget === null ? "" : `, budget ${num(said.budget)}`));
  if (fan) row("With 90 %", `by ${time(fan.end_s.p90)}` + (fan.cost ? `, at most ${money(fan.cost.p90, said.currency)}` : ""));
  if (fan && fan.odds !== null && fan.odds !== undefined) row("Odds", percent(fan.odds), fan.odds < 0.5 ? "bad" : fan.odds < 0.9 ? "warn" : "good");
  row("Spent so far", `${money(said.spent, said.currency)} in ${time(said.elapsed_s)}`);
  return make("dl", { class: "facts" }, rows);
};

// Another deadline or budget; what would come of it is shown while one types.
export const amend = (source, run, summary) => {
  const deadline = make("input", { id: "amend-deadline", placeholder: summary.deadline_s === null ? "none" : time(summary.deadline_s), autocomplete: "off" });
  const budget = make("input", { id: "amend-budget", placeholder: summary.budget === null ? "none" : `${summary.budget} ${summary.currency}`, autocomplete: "off" });
  const preview = make("div", { class: "preview", "aria-live": "polite" }, el("p", "Type another deadline or budget to see what would come of it.", "note"));
  const wanted = () => ({ deadline: deadline.value.trim(), budget: budget.value.trim() });
  const same = (a, b) => a && b && a.deadline === b.deadline && a.budget === b.budget;
  let timer = 0, shown = null, turn = 0;
  return ask({
    title: "Change the goal", confirm: "Change the goal",
    body: [
      make("div", { class: "two" }, field("Deadline", deadline, "from the run's begin: 2 h; or later: +30 min"), field("Budget", budget, "in all: 40 SU; or more: +5")),
      preview],
    ready: ({ yes }) => {
      yes.disabled = true;
      const look = async () => {
        const asked = wanted(), mine = ++turn;
        yes.disabled = true;
        if (!asked.deadline && !asked.budget) { preview.replaceChildren(el("p", "Type another deadline or budget to see what would come of it.", "note")); return; }
        preview.replaceChildren(el("p", "Forecasting …", "note"));
        try {
          const said = await source.amend(run, { ...asked, dry_run: true });
          if (mine !== turn) return;
          shown = asked;
          preview.replaceChildren(outcome(said), el("p", `${said.reason[0].toUpperCase()}${said.reason.slice(1)}.`, "note"));
          yes.disabled = false;
        } catch (error) { if (mine === turn) preview.replaceChildren(el("p", error.message, "problem")); }
      };
      for (const input of [deadline, budget]) input.addEventListener("input", () => { yes.disabled = true; turn++; clearTimeout(timer); timer = setTimeout(look, 400); });
      deadline.focus();
    },
    act: async () => {
      const asked = wanted();
      if (!same(asked, shown)) throw new Error("Wait for the forecast of this goal.");
      await source.amend(run, { ...asked, dry_run: false });
      toast("The goal was changed.");
    },
  });
};

export const stop = (source, run) => ask({
  title: "Stop the run", confirm: "Stop the run", danger: true,
  body: [el("p", "No further task starts; tasks that run are ended and run again later. What has ended is kept. The run can be resumed.")],
  act: async () => { await source.stop(run); toast("The run is being stopped."); },
});

export const resume = (source, run) => ask({
  title: "Resume the run", confirm: "Resume",
  body: [el("p", "The run goes on where it was stopped, in a process of its own, within its deadline and budget.")],
  act: async () => { await source.resume(run); toast("The run goes on."); },
});

export const retry = (source, run, tasks, failed) => ask({
  title: tasks.length === 1 ? `Run ${tasks[0]} again` : "Run failed tasks again", confirm: "Run again",
  body: [el("p", tasks.length ? `${tasks.length === 1 ? "The task" : `${tasks.length} tasks`} and what waits for ${tasks.length === 1 ? "it" : "them"} run again and are paid again.` : `${failed === 1 ? "The failed task" : `All ${failed} failed tasks`} and what waits for them run again and are paid again.`)],
  act: async () => { await source.retry(run, tasks); toast("The tasks run again."); },
});

export const label = (source, run, row) => {
  const tags = make("input", { id: "label-tags", value: row.tags.join(" "), autocomplete: "off", spellcheck: "false" });
  const note = make("textarea", { id: "label-note", rows: "3" });
  note.value = row.note || "";
  return ask({
    title: "Tags and note", confirm: "Save",
    body: [field("Tags", tags, "words with spaces between; a run with the tag keep is never cleaned away"), field("Note", note)],
    act: async () => {
      const wanted = tags.value.split(/[\s,]+/).filter(Boolean);
      const change = { add: wanted.filter((tag) => !row.tags.includes(tag)), remove: row.tags.filter((tag) => !wanted.includes(tag)) };
      if (note.value !== (row.note || "")) change.note = note.value;
      await source.label(run, change);
      toast("Tags and note were saved.");
      return { tags: wanted, note: note.value };
    },
  });
};
