// Start of report.html: one run, or one plan, whose data the page holds.

import { embeddedSource } from "./embedded_source.js";
import { el, trouble } from "./elements.js";
import { RunView } from "./run_view.js";

const root = document.documentElement;
const broken = (message) => {
  root.dataset.error = message;
  trouble(`Part of this page could not be drawn: ${message}`);
};
addEventListener("error", (e) => broken(e.message));
addEventListener("unhandledrejection", (e) => broken(String(e.reason && e.reason.message || e.reason)));

const doc = await embeddedSource().document();
const host = document.querySelector("main");
host.append(el("h1", `${doc.summary.campaign} · ${doc.isPlan ? "plan" : doc.summary.run}`));
new RunView(host, doc);
root.dataset.drawn = performance.now().toFixed(0);
