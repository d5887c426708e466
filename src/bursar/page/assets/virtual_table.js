// A table of any length: only the rows that are seen exist, and they are fetched in blocks.

import { button, el, make } from "./elements.js";

const HEIGHT = 30, BLOCK = 200, KEPT = 40; // pixels of a row, rows of a block, blocks that are kept

const same = (a, b) => a === b || Boolean(a && b) && a.length === b.length && a.every((value, i) => value === b[i] || typeof value === "object" && JSON.stringify(value) === JSON.stringify(b[i]));

export class VirtualTable {
  // fetch(offset, limit) gives {matched, columns, rows}; shown(columns) gives [{key, word, width, kind, index}];
  // cell(row, column) gives text or a node; sort(key) is called when a head is pressed.
  constructor(host, { label, fetch, shown, cell, sort, failed }) {
    Object.assign(this, { fetch, shown, cell, sort, failed });
    this.blocks = new Map();
    this.matched = 0; this.columns = null; this.turn = 0;
    this.heads = make("div", { class: "v-row v-heads", role: "row" });
    this.body = make("div", { class: "v-body", role: "rowgroup" });
    this.box = make("div", { class: "virtual", role: "table", "aria-label": label, tabindex: "0" }, make("div", { role: "rowgroup", class: "v-top" }, this.heads), this.body);
    this.box.addEventListener("scroll", () => this.later(), { passive: true });
    this.box.addEventListener("keydown", (e) => this.key(e));
    this.resized = new ResizeObserver(() => this.later());
    this.resized.observe(this.box);
    host.append(this.box);
  }

  // Everything is asked for anew; rows stay until the new ones are there.
  async refresh({ top = false } = {}) {
    this.turn++;
    this.stale = new Set(this.blocks.keys());
    if (top) { this.blocks.clear(); this.box.scrollTop = 0; }
    await this.load(Math.floor(this.box.scrollTop / HEIGHT / BLOCK));
    this.later();
  }

  async load(block) {
    if (this.asking === `${this.turn}/${block}`) return;
    const turn = this.turn;
    this.asking = `${turn}/${block}`;
    try {
      const said = await this.fetch(block * BLOCK, BLOCK);
      if (turn !== this.turn || this.closed) return;
      this.blocks.set(block, said.rows);
      this.stale?.delete(block);
      while (this.blocks.size > KEPT) this.blocks.delete(this.blocks.keys().next().value);
      if (said.matched !== this.matched || !this.columns || this.columns.length !== said.columns.length) {
        this.matched = said.matched; this.columns = said.columns;
        this.body.style.height = `${this.matched * HEIGHT}px`;
        this.box.setAttribute("aria-rowcount", String(this.matched + 1));
        this.showHeads();
      }
      this.later();
    } catch (error) { if (turn === this.turn && !this.closed) this.failed(error); }
    finally { if (this.asking === `${turn}/${block}`) this.asking = null; }
  }

  showHeads(sorted) {
    if (sorted) this.sorted = sorted;
    if (!this.columns) return;
    this.layout = this.shown(this.columns);
    const width = this.layout.map((c) => c.grow ? `minmax(${c.width}px, 1fr)` : `${c.width}px`).join(" ");
    this.box.style.setProperty("--columns", width);
    this.box.style.setProperty("--width", `${this.layout.reduce((sum, c) => sum + c.width, 0) + 24}px`);
    const now = this.sorted || {};
    this.heads.replaceChildren(...this.layout.map((c) => make("div", { role: "columnheader", class: c.kind, "aria-sort": now.key === c.key ? (now.descending ? "descending" : "ascending") : null },
      button(c.word, () => this.sort(c.key), `sort${now.key === c.key ? now.descending ? " down" : " up" : ""}`, { title: c.word }))));
    this.drawn = null;
    this.later();
  }

  later() { this.pending = this.pending || requestAnimationFrame(() => { this.pending = 0; this.draw(); }); }

  draw() {
    if (!this.columns || this.closed) return;
    const top = this.box.scrollTop, high = this.box.clientHeight - HEIGHT;
    const first = Math.max(0, Math.floor(top / HEIGHT) - 8), last = Math.min(this.matched, Math.ceil((top + high) / HEIGHT) + 8);
    const active = this.body.contains(document.activeElement) ? document.activeElement.closest(".v-row").dataset.row : null;
    const drawn = new Map(), nodes = [];
    let missing = null;
    for (let i = first; i < last; i++) {
      const block = Math.floor(i / BLOCK), rows = this.blocks.get(block), row = rows && rows[i % BLOCK];
      if (!rows || this.stale?.has(block)) missing ??= block;
      // A row that is as it was stays, so that nothing moves away under a click.
      const known = this.drawn?.get(i);
      if (known && same(known.row, row)) { drawn.set(i, known); nodes.push(known.node); continue; }
      const node = make("div", { class: "v-row", role: "row", "aria-rowindex": String(i + 2), "data-row": String(i) },
        row ? this.layout.map((c) => {
          const content = this.cell(row, c);
          return make("div", { role: "cell", class: c.kind, title: typeof content === "string" && content.length > 12 ? content : null }, content);
        }) : make("div", { role: "cell" }, "…"));
      node.style.top = `${i * HEIGHT}px`;
      nodes.push(node);
      drawn.set(i, { row, node });
    }
    this.drawn = drawn;
    const kept = new Set(nodes);
    for (const old of [...this.body.children]) if (!kept.has(old)) old.remove();
    let next = this.body.firstChild;
    for (const node of nodes) {
      if (node === next) next = next.nextSibling;
      else this.body.insertBefore(node, next);
    }
    if (active !== null && !this.body.contains(document.activeElement)) this.focusRow(Number(active), false);
    if (missing !== null) { clearTimeout(this.timer); this.timer = setTimeout(() => this.load(missing), 60); }
  }

  focusRow(i, scroll = true) {
    if (scroll) {
      const top = i * HEIGHT, seen = this.box.clientHeight - 2 * HEIGHT;
      if (top < this.box.scrollTop) this.box.scrollTop = top;
      else if (top > this.box.scrollTop + seen) this.box.scrollTop = top - seen;
      this.draw();
    }
    this.body.querySelector(`[data-row="${i}"] a`)?.focus({ preventScroll: true });
  }

  key(e) {
    if (e.target instanceof HTMLButtonElement) return;
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15, Home: -Infinity, End: Infinity }[e.key];
    if (step === undefined || !this.body.querySelector("a")) return; // without links the box scrolls
    e.preventDefault();
    const row = document.activeElement.closest(".v-row[data-row]");
    const from = row ? Number(row.dataset.row) : Math.floor(this.box.scrollTop / HEIGHT) - (step > 0 ? 1 : 0);
    this.focusRow(Math.max(0, Math.min(this.matched - 1, from + step)));
  }

  close() { this.closed = true; this.resized.disconnect(); cancelAnimationFrame(this.pending); clearTimeout(this.timer); }
}
