"""The documentation site: built strictly, complete, and without requests to elsewhere."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from tests.axe import MISSING, axe_script, serious_findings

ROOT = Path(__file__).resolve().parents[1]
LOADED = re.compile(r"<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=\"((?:https?:)?//[^\"]*)\"")

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update"),
)
"""How Chromium is started."""

LINK = re.compile(r"<a\b[^>]*?href=\"((?![\w+]+:|//|#)[^\"#?]+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly: a warning fails."""
    pytest.importorskip("mkdocs", reason="needs MkDocs (pip install '.[docs]', or make site)")
    pytest.importorskip("material", reason="needs Material for MkDocs (the extra docs)")
    pytest.importorskip("mkdocs_jupyter", reason="needs mkdocs-jupyter (the extra docs)")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.ci
def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    """Neither scripts nor styles, fonts nor pictures."""
    pages = list(site.rglob("*.html"))
    assert len(pages) > 70
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert LOADED.findall(text) == [], page


def test_every_link_within_the_site_leads_somewhere(site: Path) -> None:
    """Also those of notebooks, and to files that are no pages."""
    for page in site.rglob("*.html"):
        if page.name == "404.html":
            continue
        for link in LINK.findall(page.read_text(encoding="utf-8")):
            assert (page.parent / unquote(link)).exists(), f"{page}: {link}"


def test_every_page_is_in_the_navigation() -> None:
    """What is in docs, or added from outside, can be reached."""
    listed = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    docs = ROOT / "docs"
    for page in (*docs.rglob("*.md"), *docs.rglob("*.ipynb")):
        assert page.relative_to(docs).as_posix() in listed


@pytest.mark.ci
def test_search_works_on_a_page_opened_as_a_file(site: Path, tmp_path: Path) -> None:
    """Without a server, in Chromium, which refuses workers there."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("no chromium to open the page in")
    done = subprocess.run(
        [
            chromium,
            *FLAGS,
            f"--user-data-dir={tmp_path}",
            *("--virtual-time-budget=8000", "--dump-dom"),
            f"{(site / 'index.html').as_uri()}?q=budget",
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    found = re.search(r"(\d+) matching documents", done.stdout)
    assert found is not None, done.stderr[-2000:]
    assert int(found[1]) > 10


SAMPLE = (
    "index",
    "tutorial",
    "architecture",
    "beside-others",
    "concepts/forecasts",
    "examples/mosaic/index",
    "guides/dashboard",
    "notebooks/first-campaign",
    "papers/nimrodg",
    "reference/campaign",
    "reference/python",
)
"""A page of each kind."""

WIDE = """
const inside = (one) => { // of what scrolls by itself
  for (let box = one; box && box !== document.body; box = box.parentElement)
    if (['auto', 'scroll', 'hidden'].includes(getComputedStyle(box).overflowX)) return true;
};
const wide = [...document.querySelectorAll('.md-content *')].filter((one) => {
  const box = one.getBoundingClientRect();
  return box.width && box.right > innerWidth + 1 && !inside(one);
});
const broken = [...document.images].filter((one) => !one.complete || !one.naturalWidth);
return {
  wide: wide.map((one) => one.outerHTML.slice(0, 100)).slice(0, 3),
  broken: broken.map((one) => one.src),
  titles: document.querySelectorAll('.md-content h1').length,
  scrolls: document.documentElement.scrollWidth > innerWidth,
};
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium, driven by selenium, and axe-core to look with."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium drives the browser")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no chromium and chromedriver to open pages in")
    if axe_script() is None:
        pytest.skip(MISSING)
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    found = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield found
    finally:
        found.quit()


def problems_of(browser: Any, page: Path, width: int, scheme: str) -> list[Any]:
    """Return why not everybody can read a page, or what does not fit on it."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    browser.get(page.as_uri())
    # The theme wraps tables after it has loaded.
    browser.execute_async_script("setTimeout(arguments[0], 320)")
    seen = browser.execute_script(WIDE)
    fits = seen == {"wide": [], "broken": [], "titles": 1, "scrolls": False}
    return serious_findings(browser) + ([] if fits else [seen])


@pytest.mark.parametrize("name", SAMPLE)
@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (400, "dark")])
def test_a_page_of_each_kind_can_be_read_by_everybody(
    site: Path, browser: Any, name: str, width: int, scheme: str
) -> None:
    """Enough contrast, one title, names of all controls; nothing is cut off on a telephone."""
    assert problems_of(browser, site / f"{name}.html", width, scheme) == []


@pytest.mark.long
@pytest.mark.timeout(600)
def test_every_page_can_be_read_by_everybody(site: Path, browser: Any) -> None:
    """As the sample."""
    for page in sorted(site.rglob("*.html")):
        if page.name == "404.html":  # only ever served
            continue
        for width, scheme in ((1400, "light"), (400, "dark")):
            assert problems_of(browser, page, width, scheme) == [], page


def test_links_that_leave_docs_work_on_the_site(site: Path) -> None:
    """Examples and benchmarks are pages; files that pages link are there."""
    for place in ("examples/epidemic/index.html", "benchmarks/index.html", "CHANGELOG.html"):
        assert (site / place).is_file(), place
    assert (site / "examples" / "first.toml").read_bytes() == (
        ROOT / "examples" / "first.toml"
    ).read_bytes()
    assert 'href="examples/first.toml"' in (site / "index.html").read_text(encoding="utf-8")
