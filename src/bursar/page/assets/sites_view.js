// Sites: what they have, what is free, what it costs now.

import { button, el, list, make, section } from "./elements.js";
import { useSections } from "./bought.js";
import { bytes, num, time, whole } from "./format.js";

const KEY = "bursar-sites-file";

export const sitesView = (source, host) => {
  const file = make("input", { id: "sites-file", placeholder: "sites.toml", value: sessionStorage.getItem(KEY) || "", autocomplete: "off", spellcheck: "false" });
  const place = make("div", { class: "place" });
  const form = make("form", { class: "tools" }, make("label", { for: "sites-file" }, "Sites file"), file, make("button", { type: "submit" }, "Look"), button("This machine", () => { file.value = ""; load(); }));
  host.append(make("div", { class: "head" }, make("div", {}, el("h1", "Sites"), el("p", "What there is to run on, asked now.", "lead"))), form, place);
  let closed = false, turn = 0, charts = [];
  const drop = () => { for (const chart of charts.splice(0)) chart.close(); };

  const hourly = (site) => { const price = site.price_now ?? site.unit_price; return price === null || price === undefined ? "unknown" : `${num(price * 3600)} ${site.currency}`; };
  const show = (said) => {
    const { sites } = said, use = useSections(said);
    const row = (site) => [
      [el("b", site.name), el("small", site.kind)],
      [site.error ? el("span", "no answer", "pill bad") : el("span", "answers", "pill good")],
      [site.free_processors === null || site.free_processors === undefined ? whole(site.processors) : `${whole(site.free_processors)} of ${whole(site.processors)}`],
      [site.traversal_time_s === null || site.traversal_time_s === undefined ? "unknown" : time(site.traversal_time_s)],
      [hourly(site), site.fixed_price ? el("small", `and ${num(site.fixed_price)} each time`) : null],
      [num(site.speed)], [bytes(site.memory)]];
    place.replaceChildren(list(["Site", "State", "#Free processors", "#Wait now", "#Processor hour", "#Speed", "#Memory"], sites.map(row), "There is no site.", "sites"),
      ...sites.filter((site) => site.error).map((site) => el("p", `${site.name}: ${site.error}`, "problem")),
      ...sites.filter((site) => site.hosts && site.hosts.length).map((site) => section(`Hosts of ${site.name}`, {}, el("pre", site.hosts.map((one) => typeof one === "string" ? one : JSON.stringify(one)).join("\n")))),
      ...use.parts);
    charts = use.charts;
    for (const chart of charts) chart.changed();
  };
  const load = async () => {
    const mine = ++turn;
    sessionStorage.setItem(KEY, file.value);
    drop();
    place.replaceChildren(el("p", "Asking the sites …", "note"));
    try {
      const said = await source.sites(file.value.trim());
      if (!closed && mine === turn) show(said);
    } catch (error) { if (!closed && mine === turn) place.replaceChildren(el("p", error.message, "problem")); }
    document.documentElement.dataset.drawn = performance.now().toFixed(0);
  };
  form.addEventListener("submit", (e) => { e.preventDefault(); load(); });
  load();
  return { close() { closed = true; drop(); } };
};
