// Two runs beside each other.

import { el, link, make, section, table } from "./elements.js";
import { num, percent, time, whole } from "./format.js";
import { runAddress } from "./runs_view.js";

const NAMES = { makespan_s: "makespan", predicted_makespan_s: "planned makespan", predicted_cost: "planned cost", deadline_s: "deadline", deadline_met: "deadline met" };

const shown = (name, value) => value === null || value === undefined ? "" : name.endsWith("_s") ? time(value) : typeof value === "boolean" ? (value ? "yes" : "no") : typeof value === "number" ? num(value) : String(value);

export const compareView = (source, host, route) => {
  const [first, second] = route.parts;
  host.append(make("p", { class: "path" }, link("Runs", "#/runs")), el("h1", "Compare"));
  const place = make("div", { class: "grid" }, el("p", "Comparing …", "note wide"));
  host.append(place);
  let closed = false;
  const load = async () => {
    const said = await source.compare(first || "", second || "");
    if (closed) return;
    const differs = (row) => row.ratio === null ? "" : row.ratio === 1 ? "same" : `× ${num(row.ratio, 3)}`;
    const rows = said.figures.map((row) => [NAMES[row.name] || row.name.replaceAll("_", " "), shown(row.name, row.first), shown(row.name, row.second), differs(row)]);
    const times = said.runtimes, apart = times.rows.filter(([, a, b]) => a && b).map(([task, a, b]) => [task, a, b, b / a]).sort((a, b) => Math.abs(Math.log(b[3])) - Math.abs(Math.log(a[3])));
    const figures = table(["figure", "#" + first, "#" + second, "#second / first"], rows, "", "figures of both runs");
    const heads = figures.querySelectorAll("th");
    for (const [i, name] of [[1, first], [2, second]]) heads[i].replaceChildren(link(name, runAddress(name)));
    place.replaceChildren(section("Figures", { id: "figures-of-both", wide: true }, figures),
      section("Tasks", { id: "tasks-of-both" }, make("dl", { class: "facts" }, [["In both", said.tasks.both], [`Only in ${first}`, said.tasks.first_only], [`Only in ${second}`, said.tasks.second_only]].map(([name, n]) => make("div", {}, el("dt", name), el("dd", whole(n)))),
        times.tasks ? [["Run times, median of second / first", `× ${num(times.median, 3)}`], ["Least and most", `× ${num(times.least, 3)} to × ${num(times.most, 3)}`]].map(([name, n]) => make("div", {}, el("dt", name), el("dd", n))) : [])),
      section("Run times that differ most", { id: "times-of-both" }, table(["*task", "#first", "#second", "#change"], apart.slice(0, 20).map(([task, a, b, ratio]) => [task, time(a), time(b), `${ratio >= 1 ? "+" : "−"}${percent(Math.abs(ratio - 1))}`]), "No task ran in both.", "run times that differ most")));
    const more = Object.entries(said).filter(([name, value]) => !["runs", "figures", "tasks", "runtimes"].includes(name) && Array.isArray(value) && value.length);
    for (const [name, value] of more) place.append(section(name[0].toUpperCase() + name.slice(1).replaceAll("_", " "), { id: `both-${name}`, wide: true }, table(["*"], value.slice(0, 100).map((one) => [typeof one === "string" ? one : JSON.stringify(one)]), "", name)));
    document.documentElement.dataset.drawn = performance.now().toFixed(0);
  };
  load().catch((error) => { if (!closed) place.replaceChildren(el("p", error.message, "problem wide")); });
  return { close() { closed = true; } };
};
