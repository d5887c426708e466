// What scrolls can be scrolled by keyboard, and the search has a name.
document.addEventListener("DOMContentLoaded", () => {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  const wide = ".md-typeset__scrollwrap, pre, pre > code, .highlight-ipynb, .jp-OutputArea-output";
  const look = () => {
    for (const part of document.querySelectorAll(wide)) {
      if (part.scrollWidth > part.clientWidth) part.tabIndex = 0;
    }
  };
  look();
  // The theme wraps tables a little later.
  setTimeout(look, 300);
  addEventListener("resize", look);
});
