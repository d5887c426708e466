// Server-sent events over fetch, as EventSource cannot send a token. Reconnects, and says whether it is connected.

const FIRST_PAUSE = 500, LONGEST_PAUSE = 15000; // milliseconds

// Calls told(event, data) for each event until closed; state("connected" | "waiting") along the way.
// refused(response) is called when the server answers with an error: true goes on trying.
// A page that nobody sees holds no connection: browsers open six to one server, for all tabs and for
// pages gone back from together, and a seventh would wait.
export const listen = (address, headers, { told, state, refused }) => {
  let connection = new AbortController(), last = null, pause = FIRST_PAUSE, closed = false;

  const read = async () => {
    connection = new AbortController();
    const response = await fetch(address, { headers: { ...headers, ...(last === null ? {} : { "Last-Event-ID": last }) }, signal: connection.signal, cache: "no-store" });
    if (!response.ok) {
      if (!refused(response)) closed = true;
      return;
    }
    state("connected");
    pause = FIRST_PAUSE;
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done || closed) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        let event = "message", data = "", id = null;
        for (const row of block.split("\n")) {
          if (row.startsWith("event: ")) event = row.slice(7);
          else if (row.startsWith("data: ")) data += row.slice(6);
          else if (row.startsWith("id: ")) id = row.slice(4);
        }
        if (data && !closed) told(event, JSON.parse(data));
        if (id !== null) last = id;
      }
    }
  };

  const go = async () => {
    while (!closed) {
      await shown();
      if (closed) return;
      try { await read(); } catch (error) { if (!closed && !(error instanceof TypeError) && error.name !== "AbortError") console.warn(error.message); }
      if (closed) return;
      if (document.hidden) continue;
      state("waiting");
      await new Promise((resolve) => setTimeout(resolve, pause));
      pause = Math.min(LONGEST_PAUSE, 2 * pause);
    }
  };
  const hide = () => { if (document.hidden) connection.abort(); };
  document.addEventListener("visibilitychange", hide);
  go();
  return () => { closed = true; document.removeEventListener("visibilitychange", hide); connection.abort(); };
};

const shown = () => new Promise((resolve) => {
  const look = () => {
    if (document.hidden) return;
    document.removeEventListener("visibilitychange", look);
    resolve();
  };
  document.addEventListener("visibilitychange", look);
  look();
});
