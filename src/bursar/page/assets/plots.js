// Charts on canvas: drawn at most once a frame, only when their data changed and they can be seen.

import { el, showTip } from "./elements.js";

const root = document.documentElement;
const colours = new Map();
export const css = (name) => {
  let value = colours.get(name);
  if (value === undefined) colours.set(name, value = getComputedStyle(root).getPropertyValue(name).trim());
  return value;
};

const charts = new Set(), waiting = new Set();
let frame = 0;
const drawWaiting = () => {
  frame = 0;
  for (const chart of [...waiting]) if (chart.seen) { waiting.delete(chart); chart.paint(); }
};
const schedule = () => { frame = frame || requestAnimationFrame(drawWaiting); };
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  colours.clear();
  for (const chart of charts) chart.changed();
});

export class Chart {
  // draw(chart) paints; find(x, y) tells what lies at a point, as text.
  constructor(host, draw) {
    this.host = host;
    this.seen = true;
    this.find = () => "";
    this.canvas = el("canvas");
    this.draw = draw;
    this.size = "";
    charts.add(this);
    host.append(this.canvas);
    this.sight = new IntersectionObserver(([now]) => { this.seen = now.isIntersecting; if (this.seen && waiting.has(this)) schedule(); }, { rootMargin: "100px" });
    this.sight.observe(host);
    this.resized = new ResizeObserver(() => { if (this.size !== this.extent()) this.changed(); });
    this.resized.observe(host);
    host.addEventListener("mousemove", (e) => {
      const box = host.getBoundingClientRect();
      showTip(this.find(e.clientX - box.left, e.clientY - box.top), e.clientX, e.clientY);
    });
    host.addEventListener("mouseleave", () => showTip(""));
    host.addEventListener("blur", () => showTip(""));
    host.addEventListener("keydown", (e) => this.asked(e));
  }

  // With the arrow keys the chart is asked along its time axis.
  asked(e) {
    if (this.ownKeys || (e.key !== "ArrowLeft" && e.key !== "ArrowRight")) return;
    e.preventDefault();
    const box = this.host.getBoundingClientRect();
    const step = (e.key === "ArrowLeft" ? -1 : 1) * Math.max(4, box.width / 60);
    this.at = Math.max(0, Math.min(box.width, (this.at ?? box.width / 2) + step));
    let text = "";
    for (let y = box.height / 2, i = 0; !text && i < box.height; i += 4) text = this.find(this.at, (y + i) % box.height);
    showTip(text, box.left + this.at, box.top + box.height / 2);
  }

  changed() { waiting.add(this); schedule(); }

  // Without data a sentence stands in the chart's place.
  say(text) {
    if (!this.empty) { this.empty = el("p", null, "note"); this.host.append(this.empty); }
    this.empty.textContent = text;
    this.empty.hidden = !text;
    this.canvas.hidden = Boolean(text);
    this.host.classList.toggle("empty", Boolean(text));
  }

  extent() { return `${this.host.clientWidth}x${this.host.clientHeight}x${devicePixelRatio}`; }

  paint() {
    waiting.delete(this);
    this.size = this.extent();
    if (!this.host.clientWidth) return;
    this.draw(this);
  }

  begin() {
    const w = this.host.clientWidth, h = this.host.clientHeight, r = devicePixelRatio || 1;
    const wide = Math.round(w * r), high = Math.round(h * r);
    if (this.canvas.width !== wide || this.canvas.height !== high) { this.canvas.width = wide; this.canvas.height = high; }
    const g = this.canvas.getContext("2d");
    g.setTransform(r, 0, 0, r, 0, 0);
    g.clearRect(0, 0, w, h);
    g.font = "11px system-ui, sans-serif";
    return { g, w, h, r };
  }

  // A plot: margins, scales, grid. Returns functions from values to pixels.
  axes(x0, x1, y0, y1, { xlabel = "", ylabel = "", xf, yf, clock = true }) {
    const { g, w, h } = this.begin();
    const L = 62, R = 14, T = 18, B = 34;
    if (x1 <= x0) x1 = x0 + 1;
    if (y1 <= y0) y1 = y0 + 1;
    const X = (v) => L + (v - x0) / (x1 - x0) * (w - L - R), Y = (v) => h - B - (v - y0) / (y1 - y0) * (h - T - B);
    g.strokeStyle = css("--grid"); g.fillStyle = css("--soft"); g.lineWidth = 1;
    g.textAlign = "center";
    for (const t of ticks(x0, x1, Math.floor((w - L - R) / 90), clock ? sexagesimal : decimal)) {
      g.beginPath(); g.moveTo(X(t), T); g.lineTo(X(t), h - B); g.stroke();
      g.fillText(xf(t), inside(g, xf(t), X(t), w), h - B + 14);
    }
    g.textAlign = "right";
    let rows = Math.floor((h - T - B) / 38), marks = ticks(y0, y1, rows, yf.clock ? sexagesimal : decimal);
    for (let tries = 0; marks.length < 2 && tries < 8; tries++) marks = ticks(y0, y1, ++rows, yf.clock ? sexagesimal : decimal); // one is no scale
    for (const t of marks) {
      g.beginPath(); g.moveTo(L, Y(t)); g.lineTo(w - R, Y(t)); g.stroke();
      g.fillText(yf(t), L - 6, Y(t) + 4);
    }
    g.fillText(xlabel, w - R, h - 4);
    g.textAlign = "left"; g.fillText(ylabel, 2, 11);
    const value = (x) => x0 + (x - L) / (w - L - R) * (x1 - x0);
    return { g, w, h, X, Y, L, R, T, B, value };
  }

  close() {
    charts.delete(this); waiting.delete(this);
    this.sight.disconnect(); this.resized.disconnect();
    showTip("");
  }
}

// The middle of a centred text that does not leave the canvas.
export const inside = (g, text, x, w) => Math.min(x, w - g.measureText(text).width / 2 - 1);

export const line = (f, points, colour, { step = false, dash = null, width = 1.8 } = {}) => {
  const { g, X, Y } = f;
  g.strokeStyle = colour; g.lineWidth = width; g.beginPath();
  if (dash) g.setLineDash(dash);
  points.forEach((p, i) => {
    if (i && step) g.lineTo(X(p[0]), Y(points[i - 1][1]));
    g[i ? "lineTo" : "moveTo"](X(p[0]), Y(p[1]));
  });
  g.stroke(); g.setLineDash([]);
};

export const area = (f, points, colour, alpha) => {
  const { g, X, Y } = f;
  g.fillStyle = colour; g.globalAlpha = alpha; g.beginPath();
  points.forEach((p, i) => g[i ? "lineTo" : "moveTo"](X(p[0]), Y(p[1])));
  g.fill(); g.globalAlpha = 1;
};

const decimal = (raw) => [1, 2, 5, 10].map((f) => f * 10 ** Math.floor(Math.log10(raw))).find((s) => s >= raw);
// Seconds, from one on, in steps that clocks have.
const CLOCK = [1, 2, 5, 10, 15, 30].concat([1, 2, 5, 10, 15, 30].map((m) => m * 60), [1, 2, 3, 6, 12, 24].map((h) => h * 3600));
export const sexagesimal = (raw) => raw <= 0.5 ? decimal(raw) : CLOCK.find((s) => s >= raw) || 86400 * decimal(raw / 86400);
export const ticks = (lo, hi, n, steps = decimal) => {
  const step = steps((hi - lo) / Math.max(1, n) || 1);
  const out = [];
  for (let t = Math.ceil(lo / step - 1e-9) * step; t <= hi + 1e-9 * step; t += step) out.push(+t.toPrecision(12));
  return out;
};
