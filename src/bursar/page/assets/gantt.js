// The schedule: planned above, actual below, on one clock. Bars are painted into pixels, so that a
// run of 100,000 tasks is drawn within a frame at every zoom.

import { time, whole as grouped } from "./format.js";
import { legend } from "./elements.js";
import { Chart, css, inside, sexagesimal, ticks } from "./plots.js";

const PALETTE = ["#4e79a7", "#59a14f", "#b07aa1", "#76b7b2", "#edc948", "#9c755f", "#f28e2b",
  "#d37295", "#a0cbe8", "#8cd17d", "#b6992d", "#d4a6c8", "#79706e"];
const LEFT = 62, RIGHT = 12, HEAD = 16, FOOT = 24, LEGEND = 14;

// A colour as a pixel of an image, which keeps blue highest on the machines there are.
const pixel = (hex) => {
  const full = hex.length === 4 ? [...hex.slice(1)].map((c) => c + c).join("") : hex.slice(1);
  const n = parseInt(full, 16);
  return (0xff000000 | (n & 0xff) << 16 | n & 0xff00 | n >> 16) >>> 0;
};

const laneHeight = (lanes) => Math.min(22, Math.max(220, Math.min(2 * lanes, 440)) / lanes);

export class Gantt {
  constructor(host, box, doc, { onTask } = {}) {
    this.host = host; this.box = box; this.doc = doc;
    this.chart = new Chart(host, () => this.draw());
    this.chart.ownKeys = true;
    this.chart.find = (x, y) => this.found(x, y);
    this.view = null; // everything, also what is still to come
    host.addEventListener("wheel", (e) => {
      if (!e.ctrlKey && document.activeElement !== host) return; // the page scrolls until the chart has the focus
      e.preventDefault();
      this.zoom(Math.exp(e.deltaY * 0.0015), this.time(e.clientX - host.getBoundingClientRect().left));
    }, { passive: false });
    let grabbed = null, moved = 0;
    host.addEventListener("pointerdown", (e) => { grabbed = [e.clientX, ...this.span]; moved = 0; });
    host.addEventListener("pointermove", (e) => {
      if (!grabbed) return;
      if (!moved && Math.abs(e.clientX - grabbed[0]) > 3) host.setPointerCapture(e.pointerId);
      moved = Math.max(moved, Math.abs(e.clientX - grabbed[0]));
      const width = this.chart.canvas.clientWidth - LEFT - RIGHT, span = grabbed[2] - grabbed[1];
      if (moved > 3) this.show(grabbed[1] - (e.clientX - grabbed[0]) / width * span, span);
    });
    const release = (e) => {
      if (grabbed && moved <= 3 && e.type === "pointerup" && onTask) {
        const box = host.getBoundingClientRect(), hit = this.hit(e.clientX - box.left, e.clientY - box.top);
        if (hit) onTask(hit.bars.task[hit.i]);
      }
      grabbed = null;
    };
    host.addEventListener("pointerup", release);
    host.addEventListener("pointercancel", release);
    host.addEventListener("keydown", (e) => {
      const [from, to] = this.span, middle = (from + to) / 2, span = to - from;
      if (e.key === "+" || e.key === "=") this.zoom(0.6, middle);
      else if (e.key === "-") this.zoom(1 / 0.6, middle);
      else if (e.key === "0") { this.view = null; this.chart.changed(); }
      else if (e.key === "ArrowLeft" || e.key === "ArrowRight") this.show(from + (e.key === "ArrowLeft" ? -0.2 : 0.2) * span, span);
      else return;
      e.preventDefault();
    });
    this.arrange();
  }

  get span() { return this.view || [0, this.whole * 1.01]; }

  time(x) {
    const [from, to] = this.span;
    return from + (x - LEFT) / (this.chart.canvas.clientWidth - LEFT - RIGHT) * (to - from);
  }

  zoom(factor, at) {
    const [from, to] = this.span, all = this.whole * 1.01;
    const span = Math.min(all, Math.max(this.whole * 1e-5, (to - from) * factor));
    this.show(at - (at - from) / (to - from) * span, span);
  }

  show(from, span) {
    const all = this.whole * 1.01, lo = Math.max(0, Math.min(from, all - span));
    this.view = span >= all * 0.999 ? null : [lo, lo + span];
    this.chart.changed();
  }

  // What the rows are, their heights, and which kinds there are.
  arrange() {
    const { doc } = this, { data } = doc;
    this.rows = [];
    for (const [title, source] of [["planned", doc.planned], ...(doc.isPlan ? [] : [["actual", doc.actual]])]) {
      for (const site of data.sites) {
        const bars = source.get(site);
        if (!bars && title === "planned") continue;
        const running = title === "actual" ? doc.running.filter((row) => row[2] === site) : [];
        if (title === "planned" && !bars.count) continue;
        const going = running.reduce((n, row) => n + row[3], 0);
        const lanes = Math.max(data.processors[data.sites.indexOf(site)] || 1, bars ? bars.lanes : 0, going);
        this.rows.push({ actual: title === "actual", site, slots: title === "planned" && data.slots[site] || [], title: data.sites.length > 1 ? `${title} · ${site}` : title, bars, lanes, running });
      }
    }
    this.whole = Math.max(1e-9, doc.now);
    let y = 4;
    for (const row of this.rows) {
      if (row.bars) this.whole = Math.max(this.whole, row.bars.last);
      row.lane = laneHeight(row.lanes); row.y = y + HEAD;
      y += HEAD + row.lane * row.lanes + 10;
    }
    this.host.style.height = Math.ceil(y + FOOT) + "px";
    this.colours();
  }

  colours() {
    const { doc } = this, { data } = doc;
    const counted = new Int32Array(data.kinds.length), seen = new Uint8Array(data.ids.length);
    let cancelled = false;
    this.cancelled = data.statuses.indexOf("cancelled");
    for (const row of this.rows) {
      const { bars } = row;
      if (!bars) continue;
      for (let i = 0; i < bars.count; i++) {
        if (!seen[bars.task[i]]) { seen[bars.task[i]] = 1; counted[bars.kind[i]]++; }
        if (row.actual && bars.status[i] === this.cancelled) cancelled = true;
      }
    }
    const common = [...counted.keys()].filter((k) => counted[k]).sort((a, b) => counted[b] - counted[a] || a - b);
    this.rank = new Int32Array(data.kinds.length); // the commonest kinds differ the most
    common.forEach((kind, i) => { this.rank[kind] = i % PALETTE.length; });
    legend(this.box, common.slice(0, LEGEND).map((kind) => ["square", PALETTE[this.rank[kind]], `\u2068${data.kinds[kind]}\u2069 (${grouped(counted[kind])})`])
      .concat(common.length > LEGEND ? [["none", "", `and ${common.length - LEGEND} more`]] : [])
      .concat(doc.running.length ? [["square", "var(--running)", "running"]] : [])
      .concat(data.failures.count ? [["square", "var(--bad)", "did not succeed"]] : [])
      .concat(cancelled ? [["square", "var(--soft)", "cancelled"]] : [])
      .concat(data.pauses.length ? [["dashed", "var(--soft)", "stopped and resumed"]] : []));
  }

  changed() { this.stale = true; this.chart.changed(); }

  draw() {
    if (this.stale) { this.stale = false; this.arrange(); }
    this.chart.size = this.chart.extent();
    const { doc } = this, { g, w, h, r } = this.chart.begin();
    const [from, to] = this.span, inner = Math.max(1, w - LEFT - RIGHT);
    const X = (t) => LEFT + (t - from) / (to - from) * inner;
    g.fillStyle = css("--soft"); g.strokeStyle = css("--grid"); g.textAlign = "center"; g.lineWidth = 1;
    for (const t of ticks(from, to, Math.floor((w - LEFT) / 90), sexagesimal)) {
      g.beginPath(); g.moveTo(X(t), 4); g.lineTo(X(t), h - FOOT + 4); g.stroke();
      g.fillText(time(t), inside(g, time(t), X(t), w), h - 8);
    }
    const ink = css("--soft");
    for (const row of this.rows) this.paint(row, from, to, inner, r);
    g.save(); g.beginPath(); g.rect(LEFT, 0, inner, h - FOOT + 4); g.clip();
    for (const row of this.rows) {
      g.strokeStyle = ink; g.lineWidth = 0.7;
      for (const [first, start, end, processors] of row.slots)
        g.strokeRect(X(start), row.y + first * row.lane, X(end === null ? to : end) - X(start), processors * row.lane);
      if (!row.actual) continue;
      g.setLineDash([4, 4]); g.beginPath();
      for (const [t] of doc.data.pauses) { g.moveTo(X(t), row.y - 3); g.lineTo(X(t), row.y + row.lane * row.lanes + 3); }
      g.stroke(); g.setLineDash([]);
    }
    if (doc.isLive) {
      g.strokeStyle = css("--warn"); g.lineWidth = 1.2; g.beginPath();
      g.moveTo(X(doc.now), 4); g.lineTo(X(doc.now), h - FOOT + 4); g.stroke();
    }
    g.restore();
    g.textAlign = "left"; g.fillStyle = ink;
    for (const row of this.rows) {
      g.font = "600 11px system-ui, sans-serif"; g.fillText(row.title, 2, row.y - 4);
      g.font = "11px system-ui, sans-serif";
      g.fillText(`${row.lanes} proc.`, 2, row.y + Math.min(12, row.lane * row.lanes));
    }
  }

  // One row's bars as pixels, those last that did not succeed: these are what one looks for.
  paint(row, from, to, inner, r) {
    const { g } = { g: this.chart.canvas.getContext("2d") };
    const wide = Math.max(1, Math.round(inner * r)), high = Math.max(1, Math.round(row.lane * row.lanes * r));
    const image = g.createImageData(wide, high), pixels = new Uint32Array(image.data.buffer);
    const back = pixel(css("--grid")), edge = pixel(css("--card")), lost = pixel(css("--bad")), grey = pixel(css("--soft"));
    const palette = PALETTE.map(pixel), scale = wide / (to - from), lane = row.lane * r, gap = lane > 5 ? Math.max(1, Math.round(r)) : 0;
    pixels.fill(back);
    const put = (start, end, first, width, colour, least, low) => {
      let x1 = Math.floor((start - from) * scale), x2 = Math.round((end - from) * scale);
      if (x2 < 0 || x1 >= wide) return;
      const split = x2 - x1 > 5 * r;
      if (x2 - x1 < least) x2 = x1 + least;
      if (x1 < 0) x1 = 0;
      if (x2 > wide) x2 = wide;
      const y1 = Math.floor(first * lane), y2 = Math.min(high, Math.max(y1 + low, Math.round((first + width) * lane) - gap));
      for (let y = y1; y < y2; y++) {
        const at = y * wide;
        if (x2 - x1 < 4) for (let x = x1; x < x2; x++) pixels[at + x] = colour;
        else pixels.fill(colour, at + x1, at + x2);
        if (split && x2 < wide) pixels[at + x2 - 1] = edge;
      }
    };
    const { bars } = row;
    if (bars) {
      const { start, end, lane: lanes, width, kind, status } = bars;
      let failures = 0;
      for (let i = 0; i < bars.count; i++) {
        if (end[i] < from || start[i] > to) continue;
        if (row.actual && status[i]) { failures++; continue; }
        put(start[i], end[i], lanes[i], width[i], palette[this.rank[kind[i]]], 1, 1);
      }
      if (failures) for (let i = 0; i < bars.count; i++) {
        if (status[i] && end[i] >= from && start[i] <= to) put(start[i], end[i], lanes[i], width[i], status[i] === this.cancelled ? grey : lost, Math.round(2 * r), Math.round(3 * r));
      }
    }
    if (row.running.length) {
      row.placed = this.place(row);
      const going = pixel(css("--running"));
      for (const [first, start, n] of row.placed) put(start, this.doc.now, first, n, going, Math.round(2 * r), 1);
    }
    g.putImageData(image, Math.round(LEFT * r), Math.round(row.y * r));
  }

  // Lanes for tasks that run: those whose last bar ended before.
  place(row) {
    const free = new Float64Array(row.lanes), { bars } = row;
    if (bars) for (let i = 0; i < bars.count; i++) for (let k = bars.lane[i]; k < bars.lane[i] + bars.width[i]; k++) if (bars.end[i] > free[k]) free[k] = bars.end[i];
    const placed = [];
    for (const [task, start, , n] of [...row.running].sort((a, b) => a[1] - b[1])) {
      for (let left = n; left > 0; left--) {
        let best = -1;
        for (let k = 0; k < row.lanes; k++) if (free[k] <= start + 1e-3 && (best < 0 || free[k] > free[best])) best = k;
        if (best < 0) break;
        free[best] = Infinity;
        placed.push([best, start, 1, task]);
      }
    }
    return placed;
  }

  hit(x, y) {
    const t = this.time(x), [from, to] = this.span, slack = (to - from) / Math.max(1, this.chart.canvas.clientWidth);
    if (x < LEFT) return null;
    for (const row of this.rows) {
      const lane = Math.floor((y - row.y) / row.lane);
      if (lane < 0 || lane >= row.lanes) continue;
      const { bars } = row;
      for (let i = 0; bars && i < bars.count; i++)
        if (bars.lane[i] <= lane && lane < bars.lane[i] + bars.width[i] && bars.start[i] - slack <= t && t <= bars.end[i] + slack) return { row, bars, i };
      const going = (row.placed || []).find(([first, start, n]) => row.running.length && first <= lane && lane < first + n && start - slack <= t && t <= this.doc.now + slack);
      return going ? { row, running: going } : null;
    }
    return null;
  }

  found(x, y) {
    const { data } = this.doc, t = this.time(x), [from, to] = this.span;
    const near = (to - from) * 4 / Math.max(1, this.chart.canvas.clientWidth);
    const row = this.rows.find((one) => y >= one.y && y < one.y + one.lane * one.lanes);
    const pause = row && row.actual && x >= LEFT && data.pauses.find(([at]) => Math.abs(at - t) < near);
    if (pause) return `stopped for ${time(pause[1])}, then resumed`;
    const hit = this.hit(x, y);
    if (!hit) return "";
    if (hit.running) return `${data.ids[hit.running[3]]}\nrunning since ${time(hit.running[1])}`;
    const { bars, i } = hit;
    return `${data.ids[bars.task[i]]}\n${data.kinds[bars.kind[i]]}, ${time(bars.end[i] - bars.start[i])} from ${time(bars.start[i])}` + (hit.row.actual ? `, ${data.statuses[bars.status[i]]}` : "");
  }

  close() { this.chart.close(); }
}
