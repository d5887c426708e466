// Letting a run that goes on use further sites.

import { el, make } from "./elements.js";
import { ask, field, toast } from "./dialogs.js";

export const addSite = (source, run) => {
  const file = make("input", { id: "add-file", placeholder: "sites.toml", autocomplete: "off", spellcheck: "false" });
  const names = make("input", { id: "add-names", placeholder: "all", autocomplete: "off", spellcheck: "false" });
  return ask({
    title: "Add sites to the run", confirm: "Add the sites",
    body: [el("p", "Tasks that run go on; what is left is planned again over all sites."), make("div", { class: "two" }, field("Sites file", file, "a path where the dashboard runs"), field("Sites", names, "names with spaces between"))],
    ready: () => file.focus(),
    act: async () => {
      const said = await source.addSites(run, { file: file.value.trim(), sites: names.value.split(/[\s,]+/).filter(Boolean) });
      toast(`The run uses ${said.added.join(", ")}.`);
    },
  });
};
