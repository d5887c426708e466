// A run as the page knows it: the document that was fetched, and what events have added since.

// Bars of a timeline in typed arrays: 100,000 of them are searched and drawn within a frame.
export class Bars {
  constructor(rows = []) {
    this.count = 0;
    this.lanes = 0;
    this.last = 0;
    this.room(Math.max(64, rows.length));
    this.push(rows);
  }

  room(n) {
    const grow = (old, Kind) => { const made = new Kind(n); if (old) made.set(old); return made; };
    this.start = grow(this.start, Float64Array);
    this.end = grow(this.end, Float64Array);
    for (const name of ["lane", "width", "kind", "task"]) this[name] = grow(this[name], Int32Array);
    this.status = grow(this.status, Uint8Array);
  }

  push(rows) {
    if (this.count + rows.length > this.start.length) this.room(Math.max(2 * this.start.length, this.count + rows.length));
    for (const [lane, start, end, width, kind, status, task] of rows) {
      const i = this.count++;
      this.lane[i] = lane; this.start[i] = start; this.end[i] = end; this.width[i] = width;
      this.kind[i] = kind; this.status[i] = status; this.task[i] = task;
      if (lane + width > this.lanes) this.lanes = lane + width;
      if (end > this.last) this.last = end;
    }
  }
}

const bySite = (rows) => new Map(Object.entries(rows || {}).map(([site, bars]) => [site, new Bars(bars)]));

export class RunDocument {
  constructor(data) {
    this.data = data;
    this.planned = bySite(data.planned);
    this.actual = bySite(data.actual);
    data.planned = data.actual = null; // twice the memory otherwise
    this.snapshot = data.snapshot || null;
    this.running = data.running || [];
    this.heard = performance.now();
  }

  get summary() { return this.data.summary; }
  get isPlan() { return this.data.summary.state === "planned"; } // nobody has run the plan
  get isLive() { return Boolean(this.data.live); }
  get currency() { return this.data.summary.currency; }

  // Seconds on the run's clock up to now.
  get now() {
    if (!this.isLive || !this.snapshot) return this.data.end;
    const apart = this.data.pauses.reduce((sum, [, seconds]) => sum + seconds, 0); // the run's clock stood still
    return Math.max(this.data.end, this.snapshot.elapsed - apart + (performance.now() - this.heard) / 1000);
  }

  // Adds what an event says and returns the names of the parts that are other ones now.
  apply(event, said) {
    const data = this.data;
    switch (event) {
      case "snapshot":
        if (!data.live) return []; // the last one of a process that has ended
        this.snapshot = said; this.heard = performance.now();
        return ["snapshot"];
      case "running":
        this.running = said.rows;
        return ["running"];
      case "ended":
        data.sites = said.sites; data.kinds = said.kinds;
        if (said.processors) data.processors = said.processors;
        for (const [site, bars] of Object.entries(said.bars)) {
          if (!this.actual.has(site)) this.actual.set(site, new Bars());
          this.actual.get(site).push(bars);
        }
        data.end = Math.max(data.end, said.end || 0);
        return ["bars"];
      case "money":
        for (const point of said.points) data.money.push(point);
        data.leases = said.leases; data.end = Math.max(data.end, said.end || 0);
        return ["money"];
      case "forecast":
        data.forecast.push(...said.rows);
        return ["forecast"];
      case "message":
        data.messages.push(...said.rows);
        return ["messages"];
      case "parts":
        Object.assign(data, said);
        return ["parts"];
      case "live":
        data.live = true;
        return ["state"];
      case "over":
        data.live = false; this.running = []; this.snapshot = null;
        return ["state"];
      default:
        return [];
    }
  }

  // Numbers of tasks by state.
  get counts() {
    const s = this.summary, p = this.snapshot;
    if (p) return { total: p.total, succeeded: p.succeeded, failed: p.failed, skipped: p.skipped, running: p.running, waiting: p.waiting };
    const running = this.isLive ? this.running.length : 0;
    return { total: s.tasks, succeeded: s.succeeded || 0, failed: s.failed || 0, skipped: s.skipped || 0, running, waiting: Math.max(0, (s.not_run || 0) - running) };
  }
}
