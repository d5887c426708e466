// The data of `bursar dashboard`: its API under /api, with the token of its process.
//
// What every source has, whatever server it asks:
//
// - `kind`, a word, and `can`, the names of what makes sense there: runs, compare, tasks, output,
//   amend, stop, resume, retry, label, plan, start, sites, money. Views and buttons of what is not
//   in it are not shown, and methods of it need not exist.
// - Methods that return a promise; a refusal is a Refusal with one sentence for people.
// - watchRuns and watch, which call told(event, data) for each event and return what ends that.
//   They reconnect by themselves, say so to connection("connected" | "waiting"), and call
//   signedOut() when the token is no longer good. The events of a run are those that
//   RunDocument.apply knows, and "reload": fetch the document again.
//
// The methods stand below, each with what it gives; a document is a RunDocument, whose data are
// those of ReportContent.to_page with version, live, running, allocations, and bounds.

import { listen } from "./events.js";
import { RunDocument } from "./run_document.js";

export class Refusal extends Error {
  constructor(status, detail) { super(detail); this.status = status; }
}

export const localSource = (token, { signedOut, connection }) => {
  const headers = { Authorization: `Bearer ${token}` };

  const ask = async (path, { method = "GET", body, key } = {}) => {
    let response;
    try {
      response = await fetch(path, {
        method, cache: "no-store",
        headers: { ...headers, ...(body === undefined ? {} : { "Content-Type": "application/json" }), ...(key ? { "Idempotency-Key": key } : {}) },
        body: body === undefined ? undefined : JSON.stringify(body),
      });
    } catch { // the server has gone
      throw new Refusal(0, "The dashboard does not answer. Is the command still running?");
    }
    if (response.status === 401) { signedOut(); throw new Refusal(401, "Sign in again."); }
    if (response.ok) return response;
    let detail = `The dashboard answered with ${response.status}.`;
    try { detail = (await response.json()).detail || detail; } catch { /* no document */ }
    throw new Refusal(response.status, detail);
  };
  const json = async (path, how) => (await ask(path, how)).json();
  const act = (path, body) => json(path, { method: "POST", body: body || {}, key: crypto.randomUUID() });
  const run = (name) => `/api/runs/${encodeURIComponent(name)}`;
  const query = (values) => new URLSearchParams(Object.entries(values).filter(([, v]) => v !== "" && v !== null && v !== undefined && v !== false)).toString();
  const watch = (path, told) => listen(path, headers, {
    told, state: connection,
    refused: (response) => {
      if (response.status === 401) signedOut();
      return response.status >= 500;
    },
  });

  return {
    kind: "local",
    can: new Set(["runs", "compare", "tasks", "output", "follow", "amend", "stop", "cancel", "add-site", "resume", "retry", "label", "plan", "start", "sites", "money"]),

    runs: () => json("/api/runs"),                                              // {folder, runs: [row]}
    watchRuns: (told) => watch("/api/runs/events", told),                        // told("runs", {changed, gone}); returns what ends it
    document: async (name) => new RunDocument(await json(run(name))),
    watch: (name, version, told) => watch(`${run(name)}/events?version=${version}`, told), // events of RunDocument.apply, and "reload"
    tasks: (name, wanted) => json(`${run(name)}/tasks?${query(wanted)}`),        // {total, matched, columns, rows}
    task: (name, number) => json(`${run(name)}/tasks/${number}`),
    output: async (name, number, stream, attempt, offset = 0) => {               // {text, size, next}
      const response = await ask(`${run(name)}/tasks/${number}/${stream}?${query({ attempt, offset })}`);
      return { text: await response.text(), size: Number(response.headers.get("X-Size")), next: Number(response.headers.get("X-Next")) };
    },
    follow: (name, number, tail, told) => watch(`${run(name)}/tasks/${number}/output/events?${query({ tail })}`, told), // "begin", "output" {stream, attempt, offset, text}, "note" {attempt, text}, "end" {attempt, status}
    compare: (first, second) => json(`/api/compare?${query({ first, second })}`),
    sites: (file) => json(`/api/sites?${query({ file })}`),
    money: () => json("/api/money"),
    statement: (account) => json(`/api/money/${encodeURIComponent(account)}`),
    forecasts: () => json("/api/forecasts"),

    amend: (name, change) => act(`${run(name)}/amend`, change),                  // {deadline, budget, dry_run}
    stop: (name) => act(`${run(name)}/stop`),
    cancel: (name) => act(`${run(name)}/cancel`),                                // {run, state}
    addSites: (name, wanted) => act(`${run(name)}/sites`, wanted),               // {file, sites}; {run, added, refused}
    resume: (name) => act(`${run(name)}/resume`),
    retry: (name, tasks) => act(`${run(name)}/retry`, { tasks }),
    label: (name, change) => act(`${run(name)}/labels`, change),                 // {add, remove, note}
    plan: async (campaign) => new RunDocument(await act("/api/plan", campaign)),
    start: (campaign) => act("/api/runs", campaign),
  };
};
