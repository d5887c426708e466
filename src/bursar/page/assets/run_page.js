// The place of one run: its head with actions, its views, and the events that keep them up to date.

import { announce, button, el, link, make, pill } from "./elements.js";
import { moment } from "./format.js";
import { RunView } from "./run_view.js";
import { tasksView } from "./tasks_view.js";
import { taskView } from "./task_view.js";
import { runAddress } from "./runs_view.js";
import { addSite } from "./add_site.js";
import { cancel } from "./cancel_action.js";
import * as actions from "./actions.js";

export const runPage = (source, host, route) => {
  const name = route.parts[0];
  let doc = null, view = null, end = () => {}, closed = false, where = route, labels = null, state = "";
  const title = el("h1", name), badge = el("span"), tags = make("span", { class: "tags" }), note = el("p", null, "sub"), tools = make("div", { class: "actions" });
  const tabs = make("nav", { class: "tabs", "aria-label": "Views of the run" });
  const place = make("div", { class: "place" }, el("p", "Reading the run …", "note"));
  host.append(make("p", { class: "path" }, link("Runs", "#/runs")),
    make("div", { class: "head" }, make("div", { class: "title" }, title, badge, tags), tools), note, tabs, place);

  const can = (what) => source.can.has(what);
  const showHead = () => {
    const now = doc.isLive ? "running" : doc.summary.state === "running" ? "interrupted" : doc.summary.state;
    if (now !== state) {
      if (state) announce(`${name}: ${now}`);
      state = now;
      badge.replaceChildren(pill(now));
    }
    const failed = doc.counts.failed, key = [now, failed > 0, Boolean(labels), labels && labels.tags.join(), labels && labels.note].join("|");
    if (tools.dataset.key === key) return;
    tools.dataset.key = key;
    const over = !doc.isLive, tries = [];
    if (can("amend") && !["finished", "cancelled"].includes(now)) tries.push(button("Change goal …", () => actions.amend(source, name, doc.summary)));
    if (can("retry") && over && failed && now !== "cancelled") tries.push(button("Run failed again …", () => actions.retry(source, name, [], doc.counts.failed)));
    if (can("label") && labels) tries.push(button("Tags …", async () => { const made = await actions.label(source, name, labels); if (made) { labels = { ...labels, ...made }; showHead(); } }));
    if (can("resume") && over && !["finished", "failed", "cancelled"].includes(now)) tries.push(button("Resume …", () => actions.resume(source, name), "primary"));
    if (can("stop") && !over) tries.push(button("Stop …", () => actions.stop(source, name), "danger"));
    if (can("add-site") && !over) tries.push(button("Add sites …", () => addSite(source, name)));
    if (can("cancel") && !["finished", "cancelled"].includes(now)) tries.push(button("Cancel …", () => cancel(source, name), "danger"));
    const held = document.activeElement && tools.contains(document.activeElement) ? document.activeElement.textContent : null;
    tools.replaceChildren(...tries);
    if (held) (tries.find((one) => one.textContent === held) || tries[0])?.focus();
    tags.replaceChildren(...(labels ? labels.tags.map((tag) => el("span", tag, "tag")) : []));
    const campaign = doc.summary.campaign;
    note.textContent = [campaign === name ? "" : campaign, labels && labels.created ? `begun ${moment(labels.created)}` : "", labels && labels.note].filter(Boolean).join(" · ");
  };

  const showTabs = () => {
    const [, part, number] = where.parts;
    const tab = (word, href, current) => make("a", { href, "aria-current": current ? "page" : null }, word);
    tabs.replaceChildren(tab("Overview", runAddress(name), !part), tab("Tasks", runAddress(name, "tasks"), part === "tasks" && number === undefined),
      ...(number === undefined ? [] : [tab(doc.data.ids[number] || `task ${number}`, runAddress(name, "tasks", number), true)]));
  };

  const showView = () => {
    if (view) view.close();
    place.replaceChildren();
    const [, part, number] = where.parts, session = { name, get doc() { return doc; } };
    if (part === "tasks" && number !== undefined) view = taskView(source, place, session, Number(number));
    else if (part === "tasks") view = tasksView(source, place, session, where.query);
    else view = new RunView(place, doc, { address: (task) => runAddress(name, "tasks", task) });
    document.documentElement.dataset.drawn = performance.now().toFixed(0);
  };

  // The document anew, where events cannot lead on from the one there is.
  const load = async () => {
    end();
    const mine = await source.document(name);
    if (closed) return;
    doc = mine;
    const first = !view;
    showHead(); showTabs();
    if (first || view instanceof RunView) showView(); else view.update(["bars", "running", "parts", "state"]);
    end = source.watch(name, doc.data.version, (event, said) => {
      if (closed || mine !== doc) return;
      if (event === "reload") { load().catch(failed); return; }
      // Begin and end of a life change much at once.
      if (event === "over" || event === "live" || event === "hello" && said.live !== undefined && said.live !== doc.isLive) {
        doc.apply(event === "hello" ? (said.live ? "live" : "over") : event, {});
        showHead(); view.update(["state"]);
        if (event === "over") load().catch(failed);
        return;
      }
      const parts = doc.apply(event, said);
      if (!parts.length) return;
      if (parts.includes("snapshot") || parts.includes("parts")) showHead();
      view.update(parts);
    });
  };
  const failed = (error) => { if (!closed) place.replaceChildren(el("p", error.message, "problem")); };

  const findLabels = async () => {
    if (!can("label")) return;
    const row = (await source.runs()).runs.find((one) => one.run === name);
    if (closed || !row) return;
    labels = row;
    if (doc) showHead();
  };

  load().then(findLabels).catch(failed);
  return {
    follow(next) { where = next; if (!doc) return; showTabs(); showView(); },
    close() { closed = true; end(); if (view) view.close(); },
  };
};
