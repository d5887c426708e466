"""
The pictures of the page in the documentation: views of simulated runs.

``BURSAR_WRITE_PICTURES=1 pytest tests/dashboard/test_doc_pictures.py`` makes them anew.
"""

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("selenium.webdriver", reason="selenium drives the browser")
from tests.dashboard import test_page_views as page_views
from tests.dashboard.conftest import serving

import bursar

pytestmark = page_views.pytestmark
browser = page_views.browser
ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
WIDTH = 1400
PICTURES = {
    "dashboard-runs": ("#/runs", "table.list tbody tr", 420),
    "dashboard-run": ("#/runs/mosaic-cheap", "#gantt canvas", 1250),
    "dashboard-tasks": ("#/runs/mosaic-cheap/tasks", ".v-body a", 620),
}
"""View, what is there once it is drawn, and height, by the name of the picture."""


@pytest.fixture(scope="module")
def page(browser: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[page_views.Page]:
    """The page of two simulated runs of one campaign, for little money and in little time."""
    runs = tmp_path_factory.mktemp("runs")
    mosaic, sites = (ROOT / "examples" / name for name in ("mosaic/mosaic.toml", "sites.toml"))
    for name, processors in (("mosaic-fast", 4), ("mosaic-cheap", 2)):
        bursar.simulate(mosaic, sites, processors=processors, runs=runs, name=name)
    for served in serving(runs):
        made = page_views.Page(browser, served)
        made.browser.get(served.address)
        made.one("#code").send_keys(served.access.new_code())
        made.one("form button").click()
        made.one("table.list")
        yield made


@pytest.mark.ci
@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_of_views_that_are_there(page: page_views.Page, name: str) -> None:
    """Each view is drawn; its picture in the documentation has the size that it is taken at."""
    place, selector, height = PICTURES[name]
    page.size(WIDTH, height)
    page.go(place, selector)
    file = IMAGES / f"{name}.png"
    if os.environ.get("BURSAR_WRITE_PICTURES"):
        page.browser.execute_async_script(
            "requestAnimationFrame(() => setTimeout(arguments[0], 500))"
        )
        # Where this test's runs lie is nobody's business.
        page.script(
            "if (arguments[0]) document.querySelector('.lead').textContent = 'runs'",
            place == "#/runs",
        )
        page.browser.save_screenshot(str(file))
    # Not pixel by pixel: fonts differ from machine to machine.
    width, tall = struct.unpack(">II", file.read_bytes()[16:24])
    assert (width, tall) == (WIDTH, height)
    page.is_well()
