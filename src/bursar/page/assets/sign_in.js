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

// Signing in to a service: by a token, which is tried before it is kept; or by the browser's certificate.
export const signInWithToken = (host, enter) => {
  const token = make("input", { id: "token", type: "password", autocomplete: "current-password", "aria-describedby": "token-note" });
  const problem = make("p", { class: "problem", role: "alert", hidden: true });
  const form = make("form", { class: "sign-in" },
    el("h1", "Sign in"),
    make("p", { class: "note", id: "token-note" }, "Your token at this service; ", el("code", "bursar tokens"), " makes one. It is kept until this tab is closed. With a certificate in the browser, leave the field empty."),
    make("label", { for: "token" }, "Token"), token, problem,
    make("button", { type: "submit", class: "primary" }, "Sign in"));
  form.addEventListener("submit", async (e) => {
    e.preventDefault();
    problem.hidden = true;
    const said = token.value.trim();
    let why = "The service does not answer.";
    try {
      const response = await fetch("/v1/instances", { cache: "no-store", headers: said ? { Authorization: `Bearer ${said}` } : {} });
      if (response.ok) { enter(said || CERTIFICATE); return; }
      why = response.status === 401 ? "The service does not know this token." : (await response.json()).detail || `The service answered with ${response.status}.`;
    } catch { /* said already */ }
    problem.textContent = why; problem.hidden = false; token.focus();
  });
  host.replaceChildren(form);
  token.focus();
  return { close() {} };
};

// Kept in place of a token where the browser's certificate is enough.
export const CERTIFICATE = "certificate";
