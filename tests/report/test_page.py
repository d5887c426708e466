"""report.html in a real browser: drawn, quickly, from itself alone."""

import html
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

import bursar
from bursar.report.run_report import ReportContent, write_report

Browse = Callable[..., str]
SIZES = (100, 1000, 8000)
EVIL = "</script><script>document.title='taken'</script>"


@pytest.fixture(
    scope="module",
    params=[pytest.param(n, marks=[] if n == 1000 else pytest.mark.ci) for n in SIZES],
)
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


PROBE = """
<script>
addEventListener("load", () => {
  const root = document.documentElement;
  const charts = [...document.querySelectorAll("canvas")].filter((c) => c.offsetParent);
  root.dataset.colours = charts.map((c) => {
    const image = c.getContext("2d").getImageData(0, 0, c.width, c.height);
    const pixels = new Uint32Array(image.data.buffer);
    return `${c.parentNode.id}:${new Set(pixels).size}`;
  }).join(" ");
  root.dataset.fetched = performance.getEntriesByType("resource").length;
  const gantt = document.getElementById("gantt"), tip = document.getElementById("tip");
  const box = gantt.getBoundingClientRect(), clientX = box.left + box.width * 0.1;
  for (let y = 4; y < box.height && !root.dataset.tip; y += 2) {
    gantt.dispatchEvent(new MouseEvent("mousemove", { clientX, clientY: box.top + y }));
    if (!tip.hidden) root.dataset.tip = tip.textContent;
  }
  root.dataset.wider = document.body.scrollWidth - innerWidth;
});
</script>
"""
"""What a reader would see and do, told in the root's attributes."""


def probed(browse: Browse, page: Path, folder: Path, **how: int) -> dict[str, str]:
    """What the probe found on the page."""
    copy = folder / "probed.html"
    copy.write_text(page.read_text().replace("</body>", PROBE + "</body>"))
    (root,) = re.findall(r"<html[^>]*>", browse(copy, **how))
    return {name: html.unescape(told) for name, told in re.findall(r'data-(\w+)="([^"]*)"', root)}


def test_the_page_is_drawn_and_says_what_happened(page: Path, browse: Browse) -> None:
    """No script error, figures in place, and no task's name becomes part of the page."""
    document = browse(page)

    (root,) = re.findall(r"<html[^>]*>", document)
    assert "data-drawn" in root
    assert "data-error" not in root
    raw = re.sub(r"<script.*?</script>|<style.*?</style>", "", document, flags=re.S)
    text = html.unescape(raw)
    assert "page <b>" in text
    assert re.search(r"\d+ of \d+", text)
    assert "/no/such/program" in text
    assert document.count("<canvas") >= 3
    assert "<title>taken" not in document
    assert "document.title=" not in raw.replace(html.escape(EVIL, quote=False), "")


def test_a_reader_sees_charts_and_can_ask_them(page: Path, browse: Browse, tmp_path: Path) -> None:
    """Drawn to the end; every chart has content, a bar tells its task."""
    seen = probed(browse, page, tmp_path)

    assert "error" not in seen
    assert float(seen["drawn"]) > 0
    assert seen["fetched"] == "0"
    colours = dict(chart.split(":") for chart in seen["colours"].split())
    assert set(colours) == {"front", "spend", "gantt", "busy"}
    assert all(int(many) > 5 for many in colours.values()), colours
    assert re.search(r"kind-\d, ", seen["tip"])


def test_the_page_fits_a_narrow_window(page: Path, browse: Browse, tmp_path: Path) -> None:
    """Nothing makes the page wider than six hundred pixels."""
    seen = probed(browse, page, tmp_path, width=600)

    assert "error" not in seen
    assert int(seen["wider"]) <= 0


def test_a_page_that_cannot_be_drawn_says_so(page: Path, browse: Browse, tmp_path: Path) -> None:
    """Damaged data give a sentence in place of an empty page."""
    damaged = tmp_path / "damaged.html"
    damaged.write_text(page.read_text().replace('"summary":', '"summery":', 1))

    document = browse(damaged)

    assert "data-drawn" not in document.split(">", 2)[1]
    assert re.search(r'<p class="trouble" id="trouble" role="alert">Part of this page', document)


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
    assert page.stat().st_size < 300 * size + 130_000  # with the table of tasks and its code


@pytest.mark.ci
@pytest.mark.parametrize(
    "which",
    [
        "unstarted",
        "unknown",
        "paused",
        "hopeless",
        "going",
    ],
)
def test_odd_runs_are_drawn_too(
    which: str, browse: Browse, made_up_run: Callable[..., ReportContent], tmp_path: Path
) -> None:
    """Nothing begun, nothing known, two lives at two sites, only failures, not yet ended."""
    site = bursar.SiteFacts(name="here", processors=2, unit_price=1.0, fixed_price=0.0)
    far = bursar.SiteFacts(name="far", processors=2, unit_price=2.0, fixed_price=1.0)
    tasks = [bursar.Task(id=str(i), runtime=10.0) for i in range(12)]
    page = tmp_path / "report.html"
    match which:
        case "paused":
            write_report(page, made_up_run([site, far], tasks, pause=(15.0, 86_400.0)))
        case "hopeless":
            write_report(page, made_up_run([site], tasks, fails=range(12)))
        case "going":
            data = made_up_run([site], tasks)
            leases = [msgspec.structs.replace(lease, end=None) for lease in data.leases]
            summary = {**data.summary, "state": "running", "makespan_s": None, "cost": None}
            records = data.records[:5]
            bill = msgspec.structs.replace(data.bill, leases=[], tasks=[])
            write_report(
                page,
                replace(
                    data,
                    summary=summary,
                    leases=leases,
                    records=records,
                    transfers=data.transfers[:2],
                    bill=bill,
                ),
            )
        case "unstarted":
            data = made_up_run([site], tasks)
            bill = msgspec.structs.replace(data.bill, leases=[], tasks=[], total=0)
            write_report(page, replace(data, leases=[], records=[], transfers=[], bill=bill))
        case _:
            run = bursar.run(
                bursar.Campaign(name="?", workflow=bursar.Workflow((bursar.Task(id="a"),))),
                bursar.SiteFacts(name="dark", processors=1, unit_price=None),
                runs=tmp_path / "runs",
            )
            page = run.path / "report.html"

    seen = probed(browse, page, tmp_path)

    assert "error" not in seen
    assert "drawn" in seen
    text = browse(page).split("<main>")[1].split('<script type="application/json"')[0]
    assert "NaN" not in text
    assert "undefined" not in text
    assert ("stopped and resumed" in text) == (which == "paused")
    assert ("no money moves" in text) == (which in ("unknown", "unstarted"))
