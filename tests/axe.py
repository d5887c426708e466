"""axe-core, a script that finds what some people cannot see or use on a page."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

NAMED = os.environ.get("BURSAR_AXE", "")
"""Path of an ``axe.min.js``; empty: that of the package axe-core-python, if it is installed."""

MISSING = "no axe-core: pip install axe-core-python, or BURSAR_AXE=PATH of axe.min.js"

_RUN = """
const done = arguments[0];
axe.run(document, {resultTypes: ['violations']}).then((said) => done(said.violations.map(
  (v) => [v.id, v.impact, v.nodes[0].html.slice(0, 200), (v.nodes[0].any[0] || {}).message])));
"""


def axe_script() -> Path | None:
    """Return where the script lies; None: there is none."""
    if NAMED:
        return Path(NAMED)
    spec = find_spec("axe_core_python")
    places = spec.submodule_search_locations if spec else None
    return Path(places[0]) / "axe.min.js" if places else None


def serious_findings(browser: Any) -> list[Any]:
    """Return what axe-core finds serious on the page that a browser shows."""
    script = axe_script()
    assert script is not None
    browser.set_script_timeout(60)
    browser.execute_cdp_cmd("Runtime.evaluate", {"expression": script.read_text(encoding="utf-8")})
    return [one for one in browser.execute_async_script(_RUN) if one[1] in ("serious", "critical")]
