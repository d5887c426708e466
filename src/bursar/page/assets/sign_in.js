// Signing in to a dashboard that no browser was opened for: by the code that the command printed.

import { el, make } from "./elements.js";

// The code is sent as a form, whose answer is the page with the token in it.
export const signIn = (host) => {
  const code = make("input", { id: "code", name: "code", autocomplete: "off", autocapitalize: "none", spellcheck: "false", required: true, "aria-describedby": "code-note" });
  host.replaceChildren(make("form", { class: "sign-in", method: "post", action: "/open" },
    el("h1", "Sign in"),
    make("p", { class: "note", id: "code-note" }, "Type the code that ", el("code", "bursar dashboard"), " printed. A code works once; start the command again for another."),
    make("label", { for: "code" }, "Code"), code,
    make("button", { type: "submit", class: "primary" }, "Sign in")));
  code.focus();
  return { close() {} };
};
