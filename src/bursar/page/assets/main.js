// Start of the page when a server gives it: who asks, where to, and which view shows it.

import { make, trouble } from "./elements.js";
import { localSource } from "./local_source.js";
import { serviceSource } from "./service_source.js";
import { accountView, instancesView, instanceView, serviceView } from "./service_views.js";
import { signIn, signInWithToken } from "./sign_in.js";
import { runsView } from "./runs_view.js";
import { compareView } from "./compare_view.js";
import { runPage } from "./run_page.js";
import { sitesView } from "./sites_view.js";
import { moneyView } from "./money_view.js";
import { planView } from "./plan_view.js";

const root = document.documentElement, host = document.getElementById("view"), connection = document.getElementById("connection");
const KEY = "bursar-token";

addEventListener("error", (e) => { root.dataset.error = e.message; trouble(`Part of this page could not be drawn: ${e.message}`); });
addEventListener("unhandledrejection", (e) => {
  const text = String(e.reason && e.reason.message || e.reason);
  root.dataset.error = text; trouble(text);
});

// The token comes with the page once and is kept until the tab is closed; it never enters an address.
const given = document.getElementById("access"), access = JSON.parse(given.textContent);
given.remove();
if (access.token) sessionStorage.setItem(KEY, access.token);
if (location.pathname !== "/") history.replaceState(null, "", "/" + location.hash);

// Where the data come from, by what the server says of itself, and the form that asks for its token.
const SOURCES = {
  local: { open: localSource, form: signIn, views: { runs: runsView, run: runPage, compare: compareView, sites: sitesView, money: moneyView, plan: planView } },
  service: { open: serviceSource, form: signInWithToken, views: { runs: instancesView, run: instanceView, sites: serviceView, money: accountView } },
};
const { open, form, views: VIEWS } = SOURCES[access.kind];

const signedOut = () => { sessionStorage.removeItem(KEY); source = null; show(); };
const connected = (state) => {
  connection.textContent = state === "connected" ? "live" : state === "waiting" ? "connecting again …" : "";
  connection.className = state;
};
// Signed in by a token that was typed.
const enter = (typed) => {
  sessionStorage.setItem(KEY, typed);
  source = open(typed, { signedOut, connection: connected });
  show();
};
const token = sessionStorage.getItem(KEY);
let source = token ? open(token, { signedOut, connection: connected }) : null;

const WORDS = access.kind === "service" ? { runs: "Instances", sites: "Service" } : {};
const PLACES = [["runs", "Runs", "#/runs"], ["plan", "Plan", "#/plan"], ["sites", "Sites", "#/sites"], ["money", "Money", "#/money"]].map(([name, word, href]) => [name, WORDS[name] || word, href]);

const parse = (hash) => {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean).map((part) => { try { return decodeURIComponent(part); } catch { return part; } });
  const [place = "runs", ...rest] = parts;
  const name = place === "runs" && rest.length ? "run" : VIEWS[place] && place !== "run" ? place : "runs";
  return { name, place: name === "run" ? "runs" : name, parts: rest, query: new URLSearchParams(query) };
};

const navigate = (place) => {
  const allowed = PLACES.filter(([name]) => source && source.can.has(name));
  document.getElementById("navigation").replaceChildren(...allowed.map(([name, word, href]) =>
    make("a", { href, "aria-current": name === place ? "page" : null }, word)));
};

let view = null, shown = "";
const show = async () => {
  if (location.hash === "#view") return; // the link that skips the navigation
  const route = parse(location.hash);
  navigate(route.place);
  trouble("");
  // A run stays open while one moves between its views.
  const same = view && view.follow && route.name === "run" && shown === `run/${route.parts[0]}`;
  if (same && source) { view.follow(route); settle(route); return; }
  if (view) view.close();
  connected("");
  host.replaceChildren();
  if (!source) { view = form(host, enter); document.title = "Sign in · Bursar"; return; }
  shown = `${route.name}/${route.parts[0] || ""}`;
  view = VIEWS[route.name](source, host, route);
  settle(route);
};

// Where one is now is in the title, and the next key goes there.
let began = false;
const settle = (route) => {
  const where = route.name === "run" || route.name === "compare" ? route.parts.join(" · ") : PLACES.find(([name]) => name === route.place)[1];
  document.title = `${where} · Bursar`;
  if (began) { host.focus({ preventScroll: true }); scrollTo(0, 0); }
  began = true;
};

document.querySelector(".skip").addEventListener("click", (e) => { e.preventDefault(); host.focus(); });
addEventListener("hashchange", show);
show();

