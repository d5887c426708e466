// The data of `bursar serve`: its public API with the user's token, or the certificate that the browser has.
//
// A service knows instances and their tasks, and no plan: its views are those of service_views.js. The
// methods return what the routes of the API answer, see docs/reference/http-api.md.

import { listen } from "./events.js";
import { Refusal } from "./local_source.js";
import { CERTIFICATE } from "./sign_in.js";

export const serviceSource = (token, { signedOut, connection }) => {
  const headers = token && token !== CERTIFICATE ? { Authorization: `Bearer ${token}` } : {};

  const ask = async (path, { method = "GET", body } = {}) => {
    let response;
    try {
      response = await fetch(`/v1${path}`, {
        method, cache: "no-store",
        headers: { ...headers, ...(body === undefined ? {} : { "Content-Type": "application/json" }) },
        body: body === undefined ? undefined : JSON.stringify(body),
      });
    } catch { // the service has gone
      throw new Refusal(0, "The service does not answer.");
    }
    if (response.status === 401) { signedOut(); throw new Refusal(401, "Sign in again: the token is not valid."); }
    if (response.ok) return response;
    let detail = `The service answered with ${response.status}.`;
    try { const said = await response.json(); detail = said.detail || said.title || detail; } catch { /* no document */ }
    throw new Refusal(response.status, detail);
  };
  const json = async (path, how) => (await ask(path, how)).json();
  const instance = (id) => `/instances/${encodeURIComponent(id)}`;

  return {
    kind: "service",
    can: new Set(["runs", "sites", "money", "follow"]),

    site: () => json("/site"),
    account: () => json("/account"),
    agreements: async () => (await json("/trade/agreements")).agreements,
    invoice: () => json("/trade/invoice"),
    overview: () => json("/admin/overview"),                                     // administrators only: else a Refusal with 403
    instances: async () => (await json("/instances")).instances,
    instance: (id) => json(instance(id)),
    watch: (id, told) => listen(`/v1${instance(id)}/events`, headers, {          // told(event, InstanceInfo)
      told, state: connection,
      refused: (response) => {
        if (response.status === 401) signedOut();
        return response.status >= 500 || response.status === 429;
      },
    }),
    tasks: (id, after, limit) => json(`${instance(id)}/tasks?after=${after}&limit=${limit}`), // {tasks, next}
    results: (id, after, limit) => json(`${instance(id)}/results?after=${after}&limit=${limit}`),
    output: async (id, task, stream) => (await ask(`${instance(id)}/tasks/${task}/${stream}`)).text(),
    follow: (id, task, tail, told) => {                                          // as the method of local_source.js
      let over = false, serial = 0, have = { stdout: -tail, stderr: -tail }, decoders;
      const part = async () => {
        const said = await json(`${instance(id)}/tasks/${task}/output?${new URLSearchParams({ serial, ...have, wait: 20 })}`);
        if (over) return;
        if (said.result !== undefined && said.result !== null) { told("end", { status: said.state }); return; }
        told("note", { text: said.sealed ? "Its output is sealed, and comes with its result." : said.serial && !said.shown ? "Its worker does not answer; its output comes at the latest with its result." : said.state });
        if (said.serial && said.serial !== serial) { serial = said.serial; have = { stdout: 0, stderr: 0 }; decoders = { stdout: new TextDecoder(), stderr: new TextDecoder() }; }
        for (const stream of said.shown ? ["stdout", "stderr"] : []) {
          const { offset = 0, text = "", base64 = "" } = said[stream] || {};
          const bytes = base64 ? Uint8Array.from(atob(base64), (one) => one.charCodeAt(0)) : new TextEncoder().encode(text);
          have[stream] = offset + bytes.length;
          told("output", { stream, text: decoders[stream].decode(bytes, { stream: true }) });
        }
      };
      const go = async () => {
        while (!over) {
          const began = Date.now();
          try { await part(); } catch (error) { told("note", { text: error.message }); if (error.status >= 400 && error.status < 500 && error.status !== 429) return; }
          if (Date.now() - began < 300) await new Promise((resolve) => setTimeout(resolve, 1000));
        }
      };
      go();
      return () => { over = true; };
    },
    cancel: (id) => json(`${instance(id)}/cancel`, { method: "POST", body: {} }),
    destroy: (id) => ask(instance(id), { method: "DELETE" }),
  };
};
