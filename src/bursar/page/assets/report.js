"use strict";
addEventListener("error", (e) => {
  document.documentElement.dataset.error = e.message;
  const box = document.getElementById("trouble");
  box.textContent = `Part of this page could not be drawn: ${e.message}`;
  box.hidden = false;
});
(() => {
  const D = JSON.parse(document.getElementById("data").textContent);
  const S = D.summary, P = D.proposal;
  const $ = (id) => document.getElementById(id);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const PALETTE = ["#4e79a7", "#59a14f", "#b07aa1", "#76b7b2", "#edc948", "#9c755f", "#f28e2b",
    "#d37295", "#a0cbe8", "#8cd17d", "#b6992d", "#d4a6c8", "#79706e"];
  const CANCELLED = D.statuses.indexOf("cancelled");
  const FAILED = D.statuses.map((s) => s !== "succeeded");

  const el = (tag, text, cls) => {
    const node = document.createElement(tag);
    if (text !== undefined && text !== null) node.textContent = text;
    if (cls) node.className = cls;
    return node;
  };
  const time = (s) => {
    if (s === null || s === undefined) return "unknown";
    if (s < 1e-3) return s === 0 ? "0 s" : (s * 1e6).toPrecision(3) + " µs";
    if (s < 1) return (s * 1e3).toPrecision(3) + " ms";
    if (s < 120) return +s.toPrecision(3) + " s";
    const two = (n, unit, rest, small) => rest ? `${n} ${unit} ${rest} ${small}` : `${n} ${unit}`;
    const whole = Math.round(s);
    if (whole < 3600) return two(Math.floor(whole / 60), "min", whole % 60, "s");
    const minutes = Math.floor(whole / 60);
    if (minutes < 2880) return two(Math.floor(minutes / 60), "h", minutes % 60, "min");
    const hours = Math.floor(minutes / 60);
    return two(Math.floor(hours / 24), "d", hours % 24, "h");
  };
  const num = (x, digits = 4) => (x === null || x === undefined) ? "unknown" : String(+(+x).toPrecision(digits));
  const money = (x) => x === null || x === undefined ? "unknown" : `${num(x)} ${S.currency}`;
  const count = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;
  const most = (values, least) => values.reduce((a, b) => Math.max(a, b), least);
  const bytes = (b) => b > 1e9 ? (b / 1e9).toFixed(1) + " GB" : b > 1e6 ? (b / 1e6).toFixed(0) + " MB" : Math.round(b / 1e3) + " kB";
  // Whole micro-units, all their digits: the bill is exact.
  const exact = (micros) => {
    const sign = micros < 0 ? "-" : "", abs = Math.abs(micros);
    const rest = String(abs % 1000000).padStart(6, "0").replace(/0+$/, "");
    return sign + Math.floor(abs / 1000000) + (rest ? "." + rest : "");
  };

  // Head.
  const PLANNED = S.state === "planned"; // nobody has run the plan
  if (PLANNED) {
    for (const part of document.querySelectorAll(".of-run")) part.hidden = true;
    $("trade-off").classList.add("wide");
  }
  $("title").textContent = `${S.campaign} · ${PLANNED ? "plan" : S.run}`;
  $("lead").textContent = `${count(S.tasks, "task")}${S.processors ? `, ${count(S.processors, "processor")}` : ""}` + (D.sites.length > 1 ? ` at ${D.sites.length} sites` : "") + (S.deadline_s ? `, deadline ${time(S.deadline_s)}` : "");
  const figure = (name, value, small, cls) => {
    const box = el("div");
    box.append(el("dt", name));
    const dd = el("dd", value, cls);
    if (small) dd.append(el("small", small));
    box.append(dd);
    $("figures").append(box);
  };
  if (PLANNED) {
    figure("makespan", time(S.makespan_s));
    figure("cost", money(S.cost), S.budget === null ? "" : `budget ${num(S.budget)}`);
    if (S.deadline_s !== null) figure("deadline", S.deadline_met ? "can be met" : "out of reach", time(S.deadline_s), S.deadline_met ? "good" : "bad");
  } else {
    figure("state", S.state, null, { finished: "good", failed: "bad", "budget-stopped": "warn", interrupted: "warn" }[S.state]);
    figure("succeeded", `${S.succeeded} of ${S.tasks}`, [S.failed && `${S.failed} failed`, S.skipped && `${S.skipped} skipped`, S.not_run && `${S.not_run} not run`].filter(Boolean).join(", "), S.failed ? "bad" : "");
    const foreseen = S.processors ? "planned " : "expected "; // a pool follows no plan
    figure("makespan", time(S.makespan_s), foreseen + time(S.predicted_makespan_s));
    figure("cost", money(S.cost), foreseen + num(S.predicted_cost) + (S.budget === null ? "" : `\nbudget ${num(S.budget)}`), S.budget !== null && S.cost > S.budget ? "bad" : "");
    if (S.deadline_s !== null) figure("deadline", S.deadline_met === null ? "open" : S.deadline_met ? "met" : "missed", time(S.deadline_s), S.deadline_met === null ? "" : S.deadline_met ? "good" : "bad");
    figure("attempts", String(S.attempts), S.attempts > S.succeeded + S.failed ? `${S.attempts - S.succeeded - S.failed} repeated` : "");
  }

  // Axes.
  const decimal = (raw) => [1, 2, 5, 10].map((f) => f * 10 ** Math.floor(Math.log10(raw))).find((s) => s >= raw);
  // Seconds, from one on, in steps that clocks have.
  const CLOCK = [1, 2, 5, 10, 15, 30].concat([1, 2, 5, 10, 15, 30].map((m) => m * 60), [1, 2, 3, 6, 12, 24].map((h) => h * 3600));
  const sexagesimal = (raw) => raw <= 0.5 ? decimal(raw) : CLOCK.find((s) => s >= raw) || 86400 * decimal(raw / 86400);
  const ticks = (lo, hi, n, steps = decimal) => {
    const step = steps((hi - lo) / Math.max(1, n) || 1);
    const out = [];
    for (let t = Math.ceil(lo / step - 1e-9) * step; t <= hi + 1e-9 * step; t += step) out.push(+t.toPrecision(12));
    return out;
  };
  const canvas = (host) => {
    let c = host.querySelector("canvas");
    if (!c) { c = el("canvas"); host.append(c); }
    const w = host.clientWidth, h = host.clientHeight, r = devicePixelRatio || 1;
    c.width = Math.round(w * r); c.height = Math.round(h * r);
    const g = c.getContext("2d");
    g.setTransform(r, 0, 0, r, 0, 0);
    g.clearRect(0, 0, w, h);
    g.font = "11px system-ui, sans-serif";
    return { c, g, w, h };
  };
  // A plot: margins, scales, grid. Returns functions from values to pixels.
  const frame = (host, x0, x1, y0, y1, xlabel, ylabel, xf, yf) => {
    const { c, g, w, h } = canvas(host);
    const L = 62, R = 14, T = 18, B = 34;
    if (x1 <= x0) x1 = x0 + 1;
    if (y1 <= y0) y1 = y0 + 1;
    const X = (v) => L + (v - x0) / (x1 - x0) * (w - L - R), Y = (v) => h - B - (v - y0) / (y1 - y0) * (h - T - B);
    g.strokeStyle = css("--grid"); g.fillStyle = css("--soft"); g.lineWidth = 1;
    g.textAlign = "center";
    for (const t of ticks(x0, x1, Math.floor((w - L - R) / 90), sexagesimal)) {
      g.beginPath(); g.moveTo(X(t), T); g.lineTo(X(t), h - B); g.stroke();
      g.fillText(xf(t), X(t), h - B + 14);
    }
    g.textAlign = "right";
    let rows = Math.floor((h - T - B) / 38), marks = ticks(y0, y1, rows);
    while (marks.length < 2) marks = ticks(y0, y1, ++rows); // one is no scale
    for (const t of marks) {
      g.beginPath(); g.moveTo(L, Y(t)); g.lineTo(w - R, Y(t)); g.stroke();
      g.fillText(yf(t), L - 6, Y(t) + 4);
    }
    g.fillText(xlabel, w - R, h - 4);
    g.textAlign = "left"; g.fillText(ylabel, 2, 11);
    return { c, g, w, h, X, Y, L, R, T, B };
  };
  // A chart's legend: pairs of a mark's class and its word, in the mark's colour.
  const legend = (host, marks) => {
    const box = $(host);
    box.replaceChildren();
    for (const [cls, colour, word] of marks) {
      const item = el("span"), mark = el("i", null, cls);
      mark.style.color = colour;
      item.append(mark, word);
      box.append(item);
    }
  };
  const tip = $("tip");
  const hover = (host, find) => {
    host.onmousemove = (e) => {
      const box = host.getBoundingClientRect();
      const text = find(e.clientX - box.left, e.clientY - box.top);
      tip.hidden = !text;
      if (!text) return;
      tip.textContent = text;
      const left = Math.min(e.clientX + 12, innerWidth - tip.offsetWidth - 8);
      tip.style.left = left + "px"; tip.style.top = e.clientY + 14 + "px";
    };
    host.onmouseleave = () => { tip.hidden = true; };
  };

  // Trade-off.
  $("reason").textContent = P.reason ? `Chosen: ${P.reason}.` : "";
  const B = P.bounds || {};
  const bounded = (B.makespan_s ?? B.cost ?? null) !== null;
  $("bounds").textContent = !bounded ? "" : `By the estimates, no plan can beat: makespan ${time(B.makespan_s)} (critical path ${time(B.critical_path_s)}, work / processors ${time(B.work_s)}), cost ${money(B.cost)}.`;
  const drawFront = () => {
    const host = $("front");
    const known = (P.front || []).map((o, i) => ({ ...o, i })).filter((o) => o.makespan_s !== null && o.cost !== null);
    if (!known.length) { host.style.height = "auto"; host.textContent = "There is no curve: runtimes or prices are unknown, or jobs were sent one by one."; return; }
    const xs = known.map((o) => o.makespan_s), ys = known.map((o) => o.cost);
    const ended = !PLANNED && S.makespan_s !== null && S.cost !== null;
    if (S.makespan_s !== null) xs.push(S.makespan_s);
    if (S.cost !== null) ys.push(S.cost);
    for (const [makespan, cost] of D.tried) { xs.push(makespan); ys.push(cost); }
    const xmax = most(xs, B.makespan_s || 0) * 1.06, ymax = (most(ys, B.cost || 0) || 1) * 1.12;
    const f = frame(host, 0, xmax, 0, ymax, "makespan", `cost, ${S.currency}`, time, (v) => num(v, 3));
    const { g, X, Y } = f;
    g.fillStyle = css("--soft"); g.globalAlpha = 0.5;
    for (const [makespan, cost] of D.tried) g.fillRect(X(makespan) - 1, Y(cost) - 1, 3, 3);
    g.globalAlpha = 1;
    g.setLineDash([4, 4]); g.strokeStyle = css("--soft");
    if (B.makespan_s) { g.beginPath(); g.moveTo(X(B.makespan_s), f.T); g.lineTo(X(B.makespan_s), f.h - f.B); g.stroke(); }
    if (B.cost) { g.beginPath(); g.moveTo(f.L, Y(B.cost)); g.lineTo(f.w - f.R, Y(B.cost)); g.stroke(); }
    g.setLineDash([]);
    g.strokeStyle = css("--main"); g.lineWidth = 1.5; g.beginPath();
    known.forEach((o, i) => {
      if (i) { g.lineTo(X(o.makespan_s), Y(known[i - 1].cost)); g.lineTo(X(o.makespan_s), Y(o.cost)); } else g.moveTo(X(o.makespan_s), Y(o.cost));
    });
    g.stroke();
    const chosen = P.chosen ? P.chosen.index : -1;
    const dot = (o, colour, radius) => {
      g.fillStyle = colour; g.strokeStyle = css("--card"); g.lineWidth = 1.5;
      g.beginPath(); g.arc(X(o.makespan_s), Y(o.cost), radius, 0, 7); g.fill(); g.stroke();
    };
    for (const o of known) if (o.i !== chosen) dot(o, css("--main"), 4);
    for (const o of known) if (o.i === chosen) dot(o, css("--good"), 7);
    if (ended) {
      const x = X(S.makespan_s), y = Y(S.cost);
      g.strokeStyle = css("--warn"); g.lineWidth = 2;
      g.beginPath(); g.moveTo(x - 5, y - 5); g.lineTo(x + 5, y + 5); g.moveTo(x + 5, y - 5); g.lineTo(x - 5, y + 5); g.stroke();
    }
    legend("front-legend", [["dot", "var(--main)", "possible plan"], ["dot", "var(--good)", "chosen"],
      ...(ended ? [["cross", "var(--warn)", "actual"]] : []),
      ...(D.tried.length ? [["square", "var(--soft)", "plan that was tried"]] : []),
      ["dashed", "var(--soft)", "bound"]]);
    hover(host, (mx, my) => {
      const away = (k) => Math.hypot(X(k.makespan_s) - mx, Y(k.cost) - my);
      const o = known.reduce((a, b) => away(b) < away(a) ? b : a);
      return away(o) < 12 && `${count(o.processors, "processor")}\n${time(o.makespan_s)}, ${money(o.cost)}` + (o.i === chosen ? "\nchosen" : "");
    });
  };

  // Spend.
  const drawSpend = () => {
    const host = $("spend");
    if (D.leases.every((l) => !l[2] && !l[3])) { host.style.height = "auto"; host.textContent = "No price is known: no money moves."; return; }
    const end = Math.max(1e-9, D.end);
    const accrued = (t) => D.leases.reduce((sum, l) => t < l[0] ? sum : sum + l[3] + l[2] * (Math.min(t, l[1] === null ? t : l[1]) - l[0]), 0);
    const points = [];
    for (let i = 0; i <= 240; i++) points.push([end * i / 240, accrued(end * i / 240)]);
    const held = D.money.map(([t, s, h]) => [t, s + h]);
    held.push([end, held[held.length - 1][1]]);
    const top = most(points.concat(held).map((p) => p[1]), 1e-12);
    const high = S.budget !== null && S.budget < 3 * top ? Math.max(top, S.budget) : top;
    const f = frame(host, 0, end, 0, high * 1.1, "time", `${S.currency}`, time, (v) => num(v, 3));
    const { g, X, Y } = f;
    const line = (ps, colour, step) => {
      g.strokeStyle = colour; g.lineWidth = 1.8; g.beginPath();
      ps.forEach((p, i) => { if (i && step) g.lineTo(X(p[0]), Y(ps[i - 1][1])); g[i ? "lineTo" : "moveTo"](X(p[0]), Y(p[1])); });
      g.stroke();
    };
    g.fillStyle = css("--main"); g.globalAlpha = 0.14; g.beginPath(); g.moveTo(X(0), Y(0));
    for (const p of points) g.lineTo(X(p[0]), Y(p[1]));
    g.lineTo(X(end), Y(0)); g.fill(); g.globalAlpha = 1;
    line(held, css("--warn"), true);
    line(points, css("--main"), false);
    const marks = [["line", "var(--main)", "spent"], ["line", "var(--warn)", "spent and held"]];
    if (S.budget !== null) {
      const inside = S.budget <= high * 1.1;
      g.setLineDash([6, 4]);
      if (inside) line([[0, S.budget], [end, S.budget]], css("--bad"), false);
      g.setLineDash([]);
      marks.push(["dashed", "var(--bad)", inside ? "budget" : `budget, far above: ${money(S.budget)}`]);
    }
    legend("spend-legend", marks);
    hover(host, (mx) => {
      const t = (mx - f.L) / (f.w - f.L - f.R) * end;
      if (t < 0 || t > end) return "";
      let now = D.money[0];
      for (const m of D.money) if (m[0] <= t) now = m;
      return `${time(t)}\nspent ${money(accrued(t))}\nheld ${money(Math.max(0, now[1] + now[2] - accrued(t)))}`;
    });
  };

  // Forecast of the end against the truth.
  const FAN = D.forecast, truth = !PLANNED && S.not_run === 0 ? S.makespan_s : null;
  if (!FAN.length) $("forecast-section").hidden = true;
  else {
    const [at, , middle, late] = FAN[0];
    const held = FAN.filter((f) => truth >= f[1] && truth <= f[3]).length;
    $("forecast-note").textContent = `After ${time(at)} the end was expected at ${time(middle)}, with 90 % by ${time(late)}.`
      + (truth === null ? "" : ` It came at ${time(truth)}: between 10 and 90 % of ${held} of ${count(FAN.length, "forecast")}.`)
      + (truth === null || FAN[0].length < 7 || S.cost === null ? "" : ` The cost was expected to be ${money(FAN[0][5])}, with 90 % at most ${money(FAN[0][6])}, and was ${money(S.cost)}.`);
  }
  const drawForecast = () => {
    if (!FAN.length) return;
    const host = $("forecast"), end = Math.max(D.end, FAN[FAN.length - 1][0], 1e-9);
    const high = Math.max(most(FAN.map((f) => f[3]), 1e-9), truth || 0);
    const low = Math.min(FAN.reduce((a, f) => Math.min(a, f[1]), high), truth || high);
    const f = frame(host, 0, end, Math.max(0, low - 0.1 * (high - low)), high + 0.1 * (high - low), "time", "end", time, time);
    const { g, X, Y } = f;
    // Each forecast holds until the next one is made.
    const steps = (column) => FAN.flatMap((row, i) => [[row[0], row[column]], [i + 1 < FAN.length ? FAN[i + 1][0] : end, row[column]]]);
    g.fillStyle = css("--main"); g.globalAlpha = 0.18; g.beginPath();
    steps(1).concat(steps(3).reverse()).forEach((p, i) => g[i ? "lineTo" : "moveTo"](X(p[0]), Y(p[1])));
    g.fill(); g.globalAlpha = 1;
    g.strokeStyle = css("--main"); g.lineWidth = 1.8; g.beginPath();
    steps(2).forEach((p, i) => g[i ? "lineTo" : "moveTo"](X(p[0]), Y(p[1])));
    g.stroke();
    if (truth !== null) {
      g.setLineDash([6, 4]); g.strokeStyle = css("--good"); g.beginPath();
      g.moveTo(X(0), Y(truth)); g.lineTo(X(end), Y(truth)); g.stroke(); g.setLineDash([]);
    }
    legend("forecast-legend", [["line", "var(--main)", "expected end"], ["square", "var(--main)", "10 to 90 %"],
      ...(truth === null ? [] : [["dashed", "var(--good)", "true end"]])]);
    hover(host, (mx) => {
      const t = (mx - f.L) / (f.w - f.L - f.R) * end;
      const row = FAN.filter((one) => one[0] <= t).pop();
      return row && `${time(t)}\n10 %: ${time(row[1])}\n50 %: ${time(row[2])}\n90 %: ${time(row[3])}`;
    });
  };

  // Schedule.
  const seen = new Map();
  for (const source of [D.planned, D.actual]) for (const bars of Object.values(source)) for (const b of bars) seen.set(b[6], b[4]);
  const counted = new Map();
  for (const kind of seen.values()) counted.set(kind, (counted.get(kind) || 0) + 1);
  const common = [...counted].sort((a, b) => b[1] - a[1]), LEGEND = 14;
  const rank = new Map(common.map(([kind], i) => [kind, i])); // the commonest kinds differ the most
  const colour = (kind) => PALETTE[(rank.get(kind) || 0) % PALETTE.length];
  legend("legend", common.slice(0, LEGEND).map(([kind, n]) => ["square", colour(kind), `${D.kinds[kind]} (${n})`])
    .concat(common.length > LEGEND ? [["none", "", `and ${common.length - LEGEND} more`]] : [])
    .concat(D.failures.count ? [["square", "var(--bad)", "did not succeed"]] : [])
    .concat(Object.values(D.actual).some((bars) => bars.some((b) => b[5] === CANCELLED)) ? [["square", "var(--soft)", "cancelled"]] : [])
    .concat(D.pauses.length ? [["dashed", "var(--soft)", "stopped and resumed"]] : []));
  const rows = [];
  for (const [title, source] of [["planned", D.planned], ...(PLANNED ? [] : [["actual", D.actual]])])
    for (const site of D.sites) {
      const bars = source[site] || [];
      if (!bars.length && title === "planned") continue;
      let lanes = D.processors[D.sites.indexOf(site)] || 1;
      for (const b of bars) lanes = Math.max(lanes, b[0] + b[3]);
      rows.push({ actual: source === D.actual, slots: source === D.planned && D.slots[site] || [], title: D.sites.length > 1 ? `${title} · ${site}` : title, bars, lanes });
    }
  let whole = Math.max(1e-9, D.end);
  for (const r of rows) for (const b of r.bars) whole = Math.max(whole, b[2]);
  let view = [0, whole * 1.01];
  const LEFT = 62, HEAD = 16, FOOT = 24;
  const laneHeight = (lanes) => Math.min(22, Math.max(220, Math.min(2 * lanes, 440)) / lanes);
  const layout = () => { let y = 4; for (const r of rows) { r.lane = laneHeight(r.lanes); r.y = y + HEAD; y += HEAD + r.lane * r.lanes + 10; } return y + FOOT; };
  $("gantt").style.height = layout() + "px";
  const drawGantt = () => {
    const { g, w, h } = canvas($("gantt"));
    const X = (t) => LEFT + (t - view[0]) / (view[1] - view[0]) * (w - LEFT - 12);
    g.fillStyle = css("--soft"); g.strokeStyle = css("--grid"); g.textAlign = "center";
    for (const t of ticks(view[0], view[1], Math.floor((w - LEFT) / 90), sexagesimal)) {
      g.beginPath(); g.moveTo(X(t), 4); g.lineTo(X(t), h - FOOT + 4); g.stroke();
      g.fillText(time(t), X(t), h - 8);
    }
    const failed = css("--bad"), back = css("--card"), ink = css("--soft");
    g.save(); g.beginPath(); g.rect(LEFT, 0, w - LEFT - 12, h - FOOT + 4); g.clip();
    for (const r of rows) {
      g.fillStyle = css("--grid"); g.fillRect(LEFT, r.y, w - LEFT - 12, r.lane * r.lanes);
      const gap = r.lane > 5 ? 1 : 0;
      g.strokeStyle = ink; g.lineWidth = 0.7;
      for (const [first, start, end, processors] of r.slots)
        g.strokeRect(X(start), r.y + first * r.lane, X(end === null ? view[1] : end) - X(start), processors * r.lane);
      const bar = (b, fill, least, low) => {
        const x = X(b[1]), x2 = X(b[2]);
        if (x2 < LEFT || x > w) return;
        g.fillStyle = fill;
        g.fillRect(x, r.y + b[0] * r.lane, Math.max(least, x2 - x), Math.max(low, b[3] * r.lane - gap));
        if (x2 - x > 5) { g.fillStyle = back; g.fillRect(x2 - 0.7, r.y + b[0] * r.lane, 0.7, b[3] * r.lane - gap); }
      };
      const lost = (b) => r.actual && FAILED[b[5]];
      for (const b of r.bars) if (!lost(b)) bar(b, colour(b[4]), 0.6, 0.6);
      // Last and never too thin to see: it is what one looks for.
      for (const b of r.bars) if (lost(b)) bar(b, b[5] === CANCELLED ? ink : failed, 2, 3);
      if (r.actual) {
        g.strokeStyle = ink; g.setLineDash([4, 4]); g.beginPath();
        for (const [t] of D.pauses) { g.moveTo(X(t), r.y - 3); g.lineTo(X(t), r.y + r.lane * r.lanes + 3); }
        g.stroke(); g.setLineDash([]);
      }
    }
    g.restore();
    g.textAlign = "left"; g.fillStyle = ink;
    for (const r of rows) {
      g.font = "600 11px system-ui, sans-serif"; g.fillText(r.title, 2, r.y - 4);
      g.font = "11px system-ui, sans-serif";
      g.fillText(`${r.lanes} proc.`, 2, r.y + Math.min(12, r.lane * r.lanes));
    }
    hover($("gantt"), (mx, my) => {
      const t = view[0] + (mx - LEFT) / (w - LEFT - 12) * (view[1] - view[0]);
      const near = (view[1] - view[0]) * 4 / w;
      const pause = D.pauses.find(([at]) => Math.abs(at - t) < near);
      for (const r of rows) {
        const lane = Math.floor((my - r.y) / r.lane);
        if (lane < 0 || lane >= r.lanes) continue;
        const slack = (view[1] - view[0]) / w;
        if (pause && r.actual) return `stopped for ${time(pause[1])}, then resumed`;
        const b = r.bars.find((k) => k[0] <= lane && lane < k[0] + k[3] && k[1] - slack <= t && t <= k[2] + slack);
        if (b) return `${D.ids[b[6]]}\n${D.kinds[b[4]]}, ${time(b[2] - b[1])} from ${time(b[1])}` + (r.actual ? `, ${D.statuses[b[5]]}` : "");
      }
      return "";
    });
  };
  const zoom = (factor, at) => {
    const span = Math.min(whole * 1.01, Math.max(whole * 1e-5, (view[1] - view[0]) * factor));
    const share = (at - view[0]) / (view[1] - view[0]);
    let lo = at - share * span;
    lo = Math.max(0, Math.min(lo, whole * 1.01 - span));
    view = [lo, lo + span];
    requestAnimationFrame(drawGantt);
  };
  const gantt = $("gantt");
  gantt.addEventListener("wheel", (e) => {
    e.preventDefault();
    const w = gantt.clientWidth - LEFT - 12, box = gantt.getBoundingClientRect();
    zoom(Math.exp(e.deltaY * 0.0015), view[0] + (e.clientX - box.left - LEFT) / w * (view[1] - view[0]));
  }, { passive: false });
  let grabbed = null;
  gantt.addEventListener("pointerdown", (e) => { grabbed = [e.clientX, ...view]; gantt.setPointerCapture(e.pointerId); });
  gantt.addEventListener("pointermove", (e) => {
    if (!grabbed) return;
    const span = grabbed[2] - grabbed[1], w = gantt.clientWidth - LEFT - 12;
    const lo = Math.max(0, Math.min(grabbed[1] - (e.clientX - grabbed[0]) / w * span, whole * 1.01 - span));
    view = [lo, lo + span];
    requestAnimationFrame(drawGantt);
  });
  gantt.addEventListener("pointerup", () => { grabbed = null; });
  gantt.addEventListener("keydown", (e) => {
    const middle = (view[0] + view[1]) / 2, span = view[1] - view[0];
    if (e.key === "+" || e.key === "=") zoom(0.6, middle);
    else if (e.key === "-") zoom(1 / 0.6, middle);
    else if (e.key === "0") { view = [0, whole * 1.01]; drawGantt(); }
    else if (e.key === "ArrowLeft" || e.key === "ArrowRight") {
      const lo = Math.max(0, Math.min(view[0] + (e.key === "ArrowLeft" ? -0.2 : 0.2) * span, whole * 1.01 - span));
      view = [lo, lo + span]; drawGantt();
    } else return;
    e.preventDefault();
  });

  // Processors busy.
  const usage = (source) => {
    const changes = [];
    for (const bars of Object.values(source)) for (const b of bars) changes.push([b[1], b[3]], [b[2], -b[3]]);
    changes.sort((a, b) => a[0] - b[0]);
    let n = 0;
    const out = [[0, 0]];
    for (let i = 0; i < changes.length;) {
      const t = changes[i][0];
      let d = 0; // an end and a start at the same moment leave no dent
      while (i < changes.length && changes[i][0] === t) d += changes[i++][1];
      if (d) { out.push([t, n]); n += d; out.push([t, n]); }
    }
    return out;
  };
  const actualUse = usage(D.actual), plannedUse = usage(D.planned);
  const drawBusy = () => {
    const leased = D.processors.reduce((a, b) => a + b, 0) || 1;
    const top = most(actualUse.map((p) => p[1]), leased);
    const f = frame($("busy"), 0, whole * 1.01, 0, top * 1.15, "", "processors", time, (v) => num(v, 3));
    const { g, X, Y } = f;
    g.fillStyle = css("--main"); g.globalAlpha = 0.45; g.beginPath(); g.moveTo(X(0), Y(0));
    for (const p of actualUse) g.lineTo(X(p[0]), Y(p[1]));
    g.lineTo(X(actualUse[actualUse.length - 1][0]), Y(0)); g.fill(); g.globalAlpha = 1;
    g.strokeStyle = css("--soft"); g.lineWidth = 1; g.beginPath();
    plannedUse.forEach((p, i) => g[i ? "lineTo" : "moveTo"](X(p[0]), Y(p[1]))); g.stroke();
    legend("busy-legend", (PLANNED ? [] : [["square", "var(--main)", "actual"]])
      .concat(plannedUse.length > 1 ? [["line", "var(--soft)", "planned"]] : []));
  };

  // Tables.
  const table = (host, heads, body, empty) => {
    if (!body.length) { host.append(el("p", empty, "note")); return; }
    const box = el("div", null, "scroll"), t = el("table"), head = el("tr");
    const kind = (h) => ({ "#": "num", "*": "long" })[h[0]] || "";
    heads.forEach((h) => head.append(el("th", h.replace(/^[#*]/, ""), kind(h))));
    const thead = el("thead"); thead.append(head); t.append(thead);
    const tbody = el("tbody");
    for (const row of body) {
      const tr = el("tr");
      row.forEach((cell, i) => {
        const td = el("td", cell instanceof Node ? null : cell, kind(heads[i]));
        if (cell instanceof Node) td.append(cell);
        tr.append(td);
      });
      tbody.append(tr);
    }
    t.append(tbody); box.append(t); host.append(box);
  };
  const why = (row) => {
    const box = el("div");
    box.append(el("div", row[3]));
    if (row[4]) box.append(el("pre", row[4]));
    return box;
  };
  // The options of the curve; of many, evenly many and the chosen one.
  const slotsOf = (o) => {
    const there = new Map();
    for (const s of o.slots) there.set(s.site, [(there.get(s.site) || [0, s.start_s])[0] + s.processors, Math.min((there.get(s.site) || [0, s.start_s])[1], s.start_s)]);
    return [...there].map(([site, [n, start]]) => `${n} ${site}${start > 0 ? " in " + time(start) : ""}`).join(", ");
  };
  const options = P.front || [], picked = P.chosen ? P.chosen.index : -1, every = Math.max(1, Math.ceil(options.length / 24));
  const shown = options.map((o, i) => [o, i]).filter(([, i]) => i % every === 0 || i === options.length - 1 || i === picked);
  if (options.length) table($("options"), ["", "#processors", "#makespan", "#cost", "#utilisation", "*where"],
    shown.map(([o, i]) => [i === picked ? "→" : "", o.processors, time(o.makespan_s), money(o.cost), o.utilisation === null ? "unknown" : Math.round(100 * o.utilisation) + "%", slotsOf(o)]), "");
  const groups = S.failures || [];
  const like = (g) => {
    const box = el("div");
    box.append(el("div", g.what));
    if (g.first.meaning) box.append(el("p", g.first.meaning, "note"));
    return box;
  };
  if (groups.length) table($("failures"), ["#tasks", "*what they have in common", "*the first", "*its command"],
    groups.map((g) => [g.count, like(g), g.first.task + Object.entries(g.first.parameters).map(([k, v]) => ` ${k}=${v}`).join(","), g.first.command]), "");
  table($("failures"), ["*task", "#attempt", "status", "*reason and end of stderr"],
    D.failures.rows.map((r) => [r[0], r[1], r[2], why(r)]), "None.");
  if (D.failures.tried_again) $("failures").append(el("p", `${count(D.failures.tried_again, "more failed attempt")} of tasks that were tried again`, "note"));
  for (const text of document.querySelectorAll("#failures pre")) text.scrollTop = 1e6; // the end tells
  if (D.failures.count > D.failures.rows.length) $("failures").append(el("p", `and ${count(D.failures.count - D.failures.rows.length, "more failed task")}; results.jsonl holds the last of each task`, "note"));
  table($("kinds"), ["*kind", "#tasks", "#total", "#median", "#longest", "#processor time", "#memory"],
    D.by_kind.map((r) => [r[0], r[1], time(r[2]), time(r[3]), time(r[4]), time(r[5]), bytes(r[6])]), "Nothing has succeeded yet.");
  table($("slowest"), ["*task", "*kind", "#took", "#estimate", "#processor time"],
    D.slowest.map((r) => [r[0], r[1], time(r[2]), time(r[3]), time(r[4])]), "Nothing has ended yet.");
  // What differs from the site's own record by more than rounding is marked.
  const recorded = (r) => r[7] === null ? (r[9] === "bound" ? "none: the most it may have held" : "") : `${Math.round(r[7])}${r[8] === false ? " differs" : ""}`;
  table($("bill"), ["lease", "site", "#processors", "#held", "#tasks", "#idle and fixed", `#total, ${D.bill.currency}`, "#CPU s", "#by the site's record"],
    D.bill.leases.map((r) => [r[0], r[1], r[2], time(r[3]), exact(r[4]), exact(r[5]), exact(r[6]), Math.round(r[2] * r[3]), recorded(r)]).concat(
      D.bill.leases.length ? [["total", "", "", "", "", "", exact(D.bill.total), "", ""]] : []), "Nothing is paid yet.");
  for (const text of D.bill.sites) $("bill").append(el("p", text, "note"));
  if (D.bill.unsettled.length) $("bill").append(el("p", `Not settled: ${D.bill.unsettled.join(", ")}`, "note"));
  table($("messages"), ["#at", "*message"], D.messages.map((m) => [time(m[0]), m[1]]), "None.");

  const draw = () => { drawFront(); drawSpend(); drawForecast(); drawGantt(); drawBusy(); };
  draw();
  let pending = 0;
  addEventListener("resize", () => { cancelAnimationFrame(pending); pending = requestAnimationFrame(draw); });
  dark.addEventListener("change", draw);
  document.documentElement.dataset.drawn = performance.now().toFixed(0);
})();
