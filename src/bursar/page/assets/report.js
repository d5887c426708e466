// Start of report.html: one run, or one plan, whose data the page holds.

import { embeddedSource } from "./embedded_source.js";
import { el, make, pill, trouble } from "./elements.js";
import { RunView } from "./run_view.js";
import { tasksView } from "./tasks_view.js";

const root = document.documentElement;
const broken = (message) => {
  root.dataset.error = message;
  trouble(`Part of this page could not be drawn: ${message}`);
};
addEventListener("error", (e) => broken(e.message));
addEventListener("unhandledrejection", (e) => broken(String(e.reason && e.reason.message || e.reason)));

const source = await embeddedSource(), doc = await source.document(), S = doc.summary;
const host = document.querySelector("main"), overview = make("div", { class: "place" }), tasks = make("div", { class: "place" });
const tabs = make("nav", { class: "tabs", "aria-label": "Views of the run" });
host.append(make("div", { class: "title" }, el("h1", `${S.campaign} · ${doc.isPlan ? "plan" : S.run}`), pill(S.state)));
if (source.can.has("tasks")) host.append(tabs);
host.append(overview, tasks);
new RunView(overview, doc);

// Tasks are a view of their own, as on the page that a server gives.
let table = null;
const show = () => {
  const asked = source.can.has("tasks") && location.hash === "#tasks";
  tabs.replaceChildren(...[["Overview", "#overview", !asked], ["Tasks", "#tasks", asked]].map(([word, href, current]) => make("a", { href, "aria-current": current ? "page" : null }, word)));
  overview.hidden = asked; tasks.hidden = !asked;
  if (asked) table ||= tasksView(source, tasks, { name: S.run, doc }, new URLSearchParams());
};
addEventListener("hashchange", show);
show();
root.dataset.drawn = performance.now().toFixed(0);
