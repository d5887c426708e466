"""report.html in a real browser: drawn, quickly, from itself alone."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import bursar

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SIZES = (100, 1000, 8000)
EVIL = "</script><script>document.title='taken'</script>"

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium to open the page in")


@pytest.fixture(scope="module", params=SIZES)
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run of so many tasks of five kinds, some of which fail."""
    size = request.param
    tasks = [
        bursar.Task(
            id=f"t{i}" if i else EVIL,
            name=f"kind-{i % 5}",
            steps=(bursar.Exec(("/no/such/program",)),) if i % (size // 4) == 7 else (),
            runtime=0.01,
        )
        for i in range(size)
    ]
    campaign = bursar.Campaign(
        name="page <b>", workflow=bursar.Workflow(tuple(tasks)), retry=bursar.Retry(attempts=1)
    )
    result = bursar.run(campaign, runs=tmp_path_factory.mktemp("runs"))
    assert result.exit_status == 1
    return result.path / "report.html"


def opened(page: Path, profile: Path) -> str:
    """The document as the browser has it once its scripts have run."""
    assert CHROMIUM is not None
    done = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
            "--disable-sync",
            "--no-first-run",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--user-data-dir={profile}",
            "--window-size=1280,2000",
            "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


@needs_browser
def test_the_page_is_drawn_and_says_what_happened(page: Path, tmp_path: Path) -> None:
    """No script error, figures in place, and no task's name becomes part of the page."""
    document = opened(page, tmp_path)

    (drawn,) = re.findall(r'<html[^>]*data-drawn="([\d.]+)"', document)
    assert float(drawn) > 0
    raw = re.sub(r"<script.*?</script>|<style.*?</style>", "", document, flags=re.S)
    text = html.unescape(raw)
    assert "page <b>" in text
    assert re.search(r"\d+ of \d+", text)
    assert "/no/such/program" in text
    assert document.count("<canvas") >= 3
    assert "<title>taken" not in document
    assert "document.title=" not in raw.replace(html.escape(EVIL, quote=False), "")


def test_the_page_needs_nothing_but_itself(page: Path) -> None:
    """It opens offline: no address to load anything from."""
    text = page.read_text()

    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!#|data:)""", text)
    assert not re.search(r"""url\(\s*["']?(?!data:|#)""", text)
    assert not re.search(r"\b(?:fetch|XMLHttpRequest|import)\s*\(", text)


def test_what_the_page_holds_is_the_run(page: Path) -> None:
    """Each task once in the schedule as it was, each failure in its table."""
    (block,) = re.findall(
        r'<script type="application/json"[^>]*>(.*?)</script>', page.read_text(), flags=re.S
    )
    data = json.loads(block)

    size = data["summary"]["tasks"]
    assert len(data["ids"]) == size
    assert data["ids"][0] == EVIL
    assert len({bar[6] for bars in data["planned"].values() for bar in bars}) == size
    assert data["failures"]["count"] == data["summary"]["failed"] >= 3
    assert data["money"][-1][1] == pytest.approx(data["summary"]["cost"])
    assert page.stat().st_size < 300 * size + 100_000
