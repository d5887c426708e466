// The data that a page brings along: report.html, which asks nobody for anything.

import { RunDocument } from "./run_document.js";

export const embeddedSource = () => ({
  kind: "embedded",
  can: new Set(),
  document: async () => new RunDocument(JSON.parse(document.getElementById("data").textContent)),
});
