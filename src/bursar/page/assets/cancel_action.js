// Cancelling a run for good.

import { el } from "./elements.js";
import { ask, toast } from "./dialogs.js";

export const cancel = (source, run) => ask({
  title: "Cancel the run for good", confirm: "Cancel for good", danger: true,
  body: [el("p", "Tasks that run are ended, processors and money that is set aside go back. What has ended is kept. The run cannot be resumed.")],
  act: async () => {
    const said = await source.cancel(run);
    toast(said.state === "cancelled" ? "The run is cancelled for good." : `The run ended before: ${said.state}.`);
  },
});
