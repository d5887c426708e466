// Charts of a run beside the schedule: trade-off, spending, forecasts, processors.

import { count, money, most, num, time } from "./format.js";
import { legend } from "./elements.js";
import { area, css, line } from "./plots.js";

time.clock = true; // an axis of times has steps that clocks have

const hold = (rows, column, end) => rows.flatMap((row, i) => [[row[0], row[column]], [i + 1 < rows.length ? rows[i + 1][0] : end, row[column]]]);

// Cost over makespan of every plan on the curve; where the run came out, or where it is now.
export const drawFront = (chart, doc, box) => {
  const { data, summary: S, snapshot } = doc, P = data.proposal, B = P.bounds || {}, tried = data.tried || [];
  const known = (P.front || []).map((o, i) => ({ ...o, i })).filter((o) => o.makespan_s !== null && o.cost !== null);
  chart.say(known.length ? "" : "There is no curve: runtimes or prices are unknown, or jobs were sent one by one.");
  box.hidden = !known.length;
  if (!known.length) return;
  const live = doc.isLive && snapshot;
  const actual = doc.isPlan ? null : live ? [snapshot.elapsed, snapshot.spent] : S.makespan_s !== null && S.cost !== null ? [S.makespan_s, S.cost] : null;
  const fan = live && snapshot.forecast ? snapshot.forecast : null;
  const ahead = fan && fan.cost ? [fan.end_s.p50, fan.cost.p50] : null;
  const xs = known.map((o) => o.makespan_s), ys = known.map((o) => o.cost);
  for (const point of [actual, ahead, ...tried]) if (point) { xs.push(point[0]); ys.push(point[1]); }
  const xmax = most(xs, B.makespan_s || 0) * 1.06, ymax = (most(ys, B.cost || 0) || 1) * 1.12;
  const f = chart.axes(0, xmax, 0, ymax, { xlabel: "makespan", ylabel: `cost, ${S.currency}`, xf: time, yf: (v) => num(v, 3) });
  const { g, X, Y } = f;
  g.fillStyle = css("--soft"); g.globalAlpha = 0.5;
  for (const [makespan, cost] of tried) g.fillRect(X(makespan) - 1, Y(cost) - 1, 3, 3);
  g.globalAlpha = 1;
  const bound = { dash: [4, 4], width: 1 };
  if (B.makespan_s) line(f, [[B.makespan_s, 0], [B.makespan_s, ymax]], css("--soft"), bound);
  if (B.cost) line(f, [[0, B.cost], [xmax, B.cost]], css("--soft"), bound);
  const limit = { dash: [7, 4], width: 1.4 };
  const deadline = S.deadline_s && S.deadline_s <= xmax, budget = S.budget && S.budget <= ymax;
  if (deadline) line(f, [[S.deadline_s, 0], [S.deadline_s, ymax]], css("--bad"), limit);
  if (budget) line(f, [[0, S.budget], [xmax, S.budget]], css("--bad"), limit);
  line(f, known.map((o) => [o.makespan_s, o.cost]), css("--main"), { step: true, width: 1.5 });
  const chosen = P.chosen ? P.chosen.index : -1;
  const dot = (x, y, colour, radius, ring) => {
    g.fillStyle = colour; g.strokeStyle = ring || css("--card"); g.lineWidth = 1.5;
    g.beginPath(); g.arc(X(x), Y(y), radius, 0, 7); g.fill(); g.stroke();
  };
  for (const o of known) if (o.i !== chosen) dot(o.makespan_s, o.cost, css("--main"), 4);
  for (const o of known) if (o.i === chosen) dot(o.makespan_s, o.cost, css("--good"), 7);
  if (actual && ahead) line(f, [actual, ahead], css("--warn"), { dash: [3, 3], width: 1.2 });
  if (ahead) dot(...ahead, css("--card"), 5, css("--warn"));
  if (actual) {
    const x = X(actual[0]), y = Y(actual[1]);
    g.strokeStyle = css("--warn"); g.lineWidth = 2;
    g.beginPath(); g.moveTo(x - 5, y - 5); g.lineTo(x + 5, y + 5); g.moveTo(x + 5, y - 5); g.lineTo(x - 5, y + 5); g.stroke();
  }
  legend(box, [["dot", "var(--main)", "possible plan"], ...(chosen < 0 ? [] : [["dot", "var(--good)", "chosen"]]),
    ...(actual ? [["cross", "var(--warn)", live ? "now" : "actual"]] : []),
    ...(ahead ? [["ring", "var(--warn)", "expected"]] : []),
    ...(tried.length ? [["square", "var(--soft)", "plan that was tried"]] : []),
    ["dashed", "var(--soft)", "bound"],
    ...(deadline || budget ? [["dashed", "var(--bad)", deadline && budget ? "deadline and budget" : deadline ? "deadline" : "budget"]] : [])]);
  chart.find = (mx, my) => {
    const away = (k) => Math.hypot(X(k.makespan_s) - mx, Y(k.cost) - my);
    const o = known.reduce((a, b) => away(b) < away(a) ? b : a);
    return away(o) < 12 ? `${count(o.processors, "processor")}\n${time(o.makespan_s)}, ${money(o.cost, S.currency)}` + (o.i === chosen ? "\nchosen" : "") : "";
  };
};

// Money spent and held over time, and the budget.
export const drawSpend = (chart, doc, box) => {
  const { data, summary: S } = doc;
  const priced = data.leases.some((l) => l[2] || l[3]);
  chart.say(priced ? "" : doc.isLive && !data.leases.length ? "Nothing is leased yet." : "No price is known: no money moves.");
  box.hidden = !priced;
  if (!priced) return;
  const now = Math.max(1e-9, doc.now);
  const end = now;
  // Leases that have ended cost what was paid for them, which may be less than their price says.
  const price = (l, t) => t < l[0] ? 0 : l[3] + l[2] * (Math.min(t, l[1] === null ? t : l[1]) - l[0]);
  const ended = data.leases.reduce((sum, l) => l[1] === null ? sum : sum + price(l, Infinity), 0);
  const paid = data.money[data.money.length - 1][1], share = ended > 0 && paid > 0 ? paid / ended : 1;
  const accrued = (t) => data.leases.reduce((sum, l) => sum + (l[1] === null ? 1 : share) * price(l, t), 0);
  const samples = data.leases.length > 400 ? 80 : 240, points = [];
  for (let i = 0; i <= samples; i++) points.push([end * i / samples, accrued(end * i / samples)]);
  const held = data.money.map(([t, s, h]) => [t, s + h]);
  held.push([end, held[held.length - 1][1]]);
  const top = most(points.map((p) => p[1]), 1e-12), worst = most(held.map((p) => p[1]), 0);
  // What is held may be the whole budget, beside which nothing else would be seen.
  const shown = worst < 6 * top ? Math.max(top, worst) : top;
  const high = S.budget !== null && S.budget < 3 * shown ? Math.max(shown, S.budget) : shown;
  const f = chart.axes(0, end, 0, high * 1.1, { xlabel: "time", ylabel: S.currency, xf: time, yf: (v) => num(v, 3) });
  const { g, X, Y } = f;
  area(f, [[0, 0], ...points, [end, 0]], css("--main"), 0.14);
  g.save(); g.beginPath(); g.rect(f.L, f.T - 2, f.w - f.L - f.R, f.h - f.T - f.B + 4); g.clip();
  line(f, held, css("--warn"), { step: true });
  line(f, points, css("--main"));
  g.restore();
  const marks = [["line", "var(--main)", "spent"], ["line", "var(--warn)", shown < worst ? `spent and held, up to ${money(worst, S.currency)}` : "spent and held"]];
  if (S.budget !== null) {
    const inside = S.budget <= high * 1.1;
    if (inside) line(f, [[0, S.budget], [end, S.budget]], css("--bad"), { dash: [6, 4] });
    marks.push(["dashed", "var(--bad)", inside ? "budget" : `budget, far above: ${money(S.budget, S.currency)}`]);
  }
  legend(box, marks);
  chart.find = (mx) => {
    const t = f.value(mx);
    if (t < 0 || t > end) return "";
    let at = data.money[0];
    for (const m of data.money) if (m[0] <= t) at = m;
    return `${time(t)}\nspent ${money(accrued(t), S.currency)}\nheld ${money(Math.max(0, at[1] + at[2] - accrued(t)), S.currency)}`;
  };
};

// What the end (column 1) or the cost (column 4) was expected to be, as time went on.
const drawFan = (chart, doc, box, { column, limit, limitWord, truth, format, ylabel, word }) => {
  const fan = doc.data.forecast.filter((row) => row.length > column);
  chart.say(fan.length ? "" : "No forecast yet.");
  box.hidden = !fan.length;
  if (!fan.length) return;
  const last = fan[fan.length - 1], end = Math.max(doc.now, last[0], 1e-9);
  let high = Math.max(most(fan.map((row) => row[column + 2]), 1e-9), truth || 0);
  // The first forecasts know little: those of the last part decide the scale.
  const settled = fan.slice(Math.floor(fan.length / 4));
  const usual = Math.max(most(settled.map((row) => row[column + 2]), 1e-9), truth || 0, most(fan.map((row) => row[column + 1]), 0));
  high = Math.min(high, 1.5 * usual);
  const near = limit !== null && limit !== undefined && limit < 2.5 * high;
  if (near) high = Math.max(high, limit);
  let low = fan.reduce((a, row) => Math.min(a, row[column]), truth ?? high);
  if (near) low = Math.min(low, limit);
  const f = chart.axes(0, end, Math.max(0, low - 0.15 * (high - low)), high + 0.1 * (high - low || high), { xlabel: "time", ylabel, xf: time, yf: format });
  const { g } = f;
  g.save(); g.beginPath(); g.rect(f.L, f.T - 2, f.w - f.L - f.R, f.h - f.T - f.B + 4); g.clip();
  area(f, hold(fan, column, end).concat(hold(fan, column + 2, end).reverse()), css("--main"), 0.18);
  line(f, hold(fan, column + 1, end), css("--main"));
  if (truth !== null) line(f, [[0, truth], [end, truth]], css("--good"), { dash: [6, 4] });
  if (near) line(f, [[0, limit], [end, limit]], css("--bad"), { dash: [6, 4] });
  g.restore();
  legend(box, [["line", "var(--main)", `expected ${word}`], ["square", "var(--main)", "10 to 90 %"],
    ...(truth === null ? [] : [["dashed", "var(--good)", `true ${word}`]]),
    ...(limit === null || limit === undefined ? [] : [["dashed", "var(--bad)", near ? limitWord : `${limitWord}, far above: ${format(limit)}`]])]);
  chart.find = (mx) => {
    const t = f.value(mx);
    const row = fan.filter((one) => one[0] <= t).pop();
    return row ? `${time(t)}\n10 %: ${format(row[column])}\n50 %: ${format(row[column + 1])}\n90 %: ${format(row[column + 2])}` : "";
  };
};

export const truthOf = (doc) => !doc.isPlan && !doc.isLive && doc.summary.not_run === 0 ? doc.summary.makespan_s : null;

export const drawForecastEnd = (chart, doc, box) => drawFan(chart, doc, box, {
  column: 1, limit: doc.summary.deadline_s, limitWord: "deadline", truth: truthOf(doc), format: time, ylabel: "end", word: "end",
});

export const drawForecastCost = (chart, doc, box) => drawFan(chart, doc, box, {
  column: 4, limit: doc.summary.budget, limitWord: "budget", truth: truthOf(doc) === null ? null : doc.summary.cost,
  format: (v) => num(v, 3), ylabel: `cost, ${doc.currency}`, word: "cost",
});

// Processors in use over time, each part the mean over its length.
const usage = (sources, end, parts) => {
  const change = new Float64Array(parts + 2), used = new Float64Array(parts);
  for (const bars of sources) {
    for (let i = 0; i < bars.count; i++) {
      const a = bars.start[i] / end * parts, b = Math.min(parts, bars.end[i] / end * parts), n = bars.width[i];
      if (!(b > a)) continue;
      const first = Math.floor(a), last = Math.floor(b);
      if (first === last) { used[first] += n * (b - a); continue; }
      used[first] += n * (first + 1 - a);
      change[first + 1] += n; change[last] -= n;
      if (last < parts) used[last] += n * (b - last);
    }
  }
  let full = 0;
  for (let i = 0; i < parts; i++) { full += change[i]; used[i] += full; }
  return used;
};

// Numbers of processors over time as steps, of spans with a start, an end (null: now) and a number.
const stepsOf = (spans, end) => {
  const changes = spans.flatMap(([a, b, n]) => [[a, n], [b === null ? end : b, -n]]).sort((a, b) => a[0] - b[0]);
  const out = [[0, 0]];
  let n = 0;
  for (const [t, d] of changes) { n += d; out.push([Math.max(0, Math.min(t, end)), Math.max(0, n)]); }
  out.push([end, out[out.length - 1][1]]);
  return out;
};

// Busy, held and asked processors: of one site, or of all.
export const drawBusy = (chart, doc, box, site = null) => {
  const { data } = doc, of = (map) => [...map].filter(([name]) => site === null || name === site).map(([, bars]) => bars);
  let whole = Math.max(1e-9, doc.now);
  if (!doc.isLive || doc.isPlan) for (const bars of [...of(doc.planned), ...of(doc.actual)]) whole = Math.max(whole, bars.last);
  const parts = Math.max(60, Math.min(1200, chart.host.clientWidth));
  const actual = of(doc.actual);
  const known = doc.running.filter((row) => site === null || row[2] === site);
  const busy = usage(actual, whole, parts), planned = doc.planned.size ? usage(of(doc.planned), whole, parts) : null;
  if (known.length) {
    // In the part in which a task begins, the last one there ends.
    for (const [, start, , n] of known) {
      const a = Math.max(0, start / whole * parts);
      for (let i = Math.floor(a); i < parts; i++) busy[i] += n * Math.min(1, i + 1 - a);
    }
  }
  const leases = data.leases.filter((l) => l.length > 5 && (site === null || l[4] === site)).map((l) => [l[0], l[1], l[5]]);
  const held = leases.length ? stepsOf(leases, whole) : null;
  const asked = (data.allocations || []).filter((a) => (site === null || a.site === site) && a.asked_s !== null && a.asked_s !== undefined)
    .map((a) => [a.asked_s, a.began_s === null ? a.ended_s : a.began_s, a.processors]).filter((a) => a[1] === null || a[1] > a[0]);
  const waiting = asked.length ? stepsOf(asked, whole) : null;
  const index = site === null ? -1 : data.sites.indexOf(site);
  const leased = (index < 0 ? data.processors.reduce((a, b) => a + b, 0) : data.processors[index]) || 1;
  const top = Math.max(leased, most(busy, 0), held ? most(held.map((p) => p[1]), 0) : 0);
  const f = chart.axes(0, whole * 1.01, 0, top * 1.15, { ylabel: "processors", xf: time, yf: (v) => num(v, 3) });
  const at = (i) => whole * i / parts;
  const outline = (values) => Array.from(values, (n, i) => [[at(i), n], [at(i + 1), n]]).flat();
  area(f, [[0, 0], ...outline(busy), [whole, 0]], css("--main"), 0.45);
  if (planned) line(f, outline(planned), css("--soft"), { width: 1 });
  if (held) line(f, held, css("--good"), { step: true, width: 1.4 });
  if (waiting) line(f, waiting, css("--warn"), { step: true, width: 1.4, dash: [5, 3] });
  legend(box, [...(doc.isPlan ? [] : [["square", "var(--main)", "busy"]]), ...(held ? [["line", "var(--good)", "held"]] : []),
    ...(waiting ? [["dashed", "var(--warn)", "asked for, waiting"]] : []), ...(planned ? [["line", "var(--soft)", "planned"]] : [])]);
  const value = (steps, t) => { let n = 0; for (const p of steps) if (p[0] <= t) n = p[1]; return n; };
  chart.find = (mx) => {
    const t = f.value(mx), i = Math.floor(t / whole * parts);
    if (i < 0 || i >= parts) return "";
    return [time(t), doc.isPlan ? "" : `busy ${num(busy[i], 3)}`, held && `held ${num(value(held, t), 3)}`,
      waiting && `asked ${num(value(waiting, t), 3)}`, planned && `planned ${num(planned[i], 3)}`].filter(Boolean).join("\n");
  };
};
