"""The documentation site: built strictly, complete, and without requests to elsewhere."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parents[1]
LOADED = re.compile(r"<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=\"((?:https?:)?//[^\"]*)\"")

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


def test_search_works_on_a_page_opened_as_a_file(site: Path, tmp_path: Path) -> None:
    """Without a server, in Chromium, which refuses workers there."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("no chromium to open the page in")
    done = subprocess.run(
        [
            chromium,
            *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update"),
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


def test_links_that_leave_docs_work_on_the_site(site: Path) -> None:
    """Examples and benchmarks are pages; files that pages link are there."""
    for place in ("examples/epidemic/index.html", "benchmarks/index.html", "CHANGELOG.html"):
        assert (site / place).is_file(), place
    assert (site / "examples" / "first.toml").read_bytes() == (
        ROOT / "examples" / "first.toml"
    ).read_bytes()
    assert 'href="examples/first.toml"' in (site / "index.html").read_text(encoding="utf-8")
