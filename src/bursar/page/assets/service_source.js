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
    can: new Set(["runs", "sites", "money"]),

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
    cancel: (id) => json(`${instance(id)}/cancel`, { method: "POST", body: {} }),
    destroy: (id) => ask(instance(id), { method: "DELETE" }),
  };
};
