// The data that a page brings along: report.html, which asks nobody for anything.

import { RunDocument } from "./run_document.js";

// Rows of the table of tasks; a column of texts that repeat is [texts, index of each cell].
const rowsOf = (columns) => {
  const cells = columns.map(([values, at]) => at ? at.map((i) => values[i]) : values);
  return cells.length ? cells[0].map((_, i) => cells.map((column) => column[i])) : [];
};

const absent = (value) => value === null || value === undefined || value === "";

// Numbers before texts; what has no value comes last, whichever way one sorts.
const sorted = (rows, index, descending) => {
  const sign = descending ? -1 : 1;
  const compare = (a, b) => {
    if (absent(a) || absent(b)) return absent(a) - absent(b);
    if (typeof a !== typeof b) return sign * (typeof a === "number" ? -1 : 1);
    return a < b ? -sign : a > b ? sign : 0;
  };
  return rows.map((row, i) => [row, i]).sort((a, b) => compare(a[0][index], b[0][index]) || a[1] - b[1]).map(([row]) => row);
};

// What is large is compressed, in the letters of base64.
const embedded = async () => {
  const { textContent: text, dataset } = document.getElementById("data");
  if (!dataset.coding) return JSON.parse(text);
  const packed = atob(text), bytes = new Uint8Array(packed.length);
  for (let i = 0; i < packed.length; i++) bytes[i] = packed.charCodeAt(i);
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream(dataset.coding))).json();
};

export const embeddedSource = async () => {
  const data = await embedded(), table = data.table;
  delete data.table;
  let names = null, rows = null, searched = null, last = { key: "", found: null };

  const select = ({ state, search, sort, descending }) => {
    const key = JSON.stringify([state, search, sort, descending]);
    if (last.key === key) return last.found;
    let found = rows;
    if (state) found = found.filter((row) => row[names.indexOf("status")] === state);
    if (search) {
      const within = names.map((name, i) => ["task", "name", "reason"].includes(name) || name.startsWith("parameters.") ? i : -1).filter((i) => i >= 0);
      searched ||= rows.map((row) => within.map((i) => row[i]).join("\n").toLowerCase());
      const wanted = search.toLowerCase();
      found = found.filter((row) => searched[row[0]].includes(wanted));
    }
    if (sort) found = sorted(found, names.indexOf(sort), descending);
    last = { key, found };
    return found;
  };

  return {
    kind: "embedded",
    can: new Set(table ? ["tasks"] : []),
    document: async () => new RunDocument(data),
    // As a server answers, from the rows that the page holds; made when one first asks.
    tasks: async (name, wanted) => {
      if (!rows) { names = Object.keys(table); rows = rowsOf(Object.values(table)); }
      const found = select(wanted);
      return { total: data.summary.tasks, held: rows.length, matched: found.length, columns: names, rows: found.slice(wanted.offset, wanted.offset + wanted.limit) };
    },
  };
};
