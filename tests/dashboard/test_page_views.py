"""The page in a real browser: every view, every action, hostile texts, and by keyboard alone."""

import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.axe import MISSING, axe_script, serious_findings
from tests.dashboard.conftest import SWEEP, Served, serving

import bursar
from bursar.report.run_report import data_of_page
from bursar.runs.folder import RunFolder
from bursar.runs.run_record import read_run
from bursar.runs.run_reports import report_to

webdriver = pytest.importorskip(
    "selenium.webdriver", reason="selenium drives the browser: pip install -e '.[dev]'"
)

STALE = pytest.importorskip("selenium.common.exceptions").StaleElementReferenceException

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not CHROMIUM or not DRIVER, reason="no chromium and chromedriver to open the page in"
)

PATIENCE = 30.0
EVIL = "<img src=x onerror=window.taken=1>"
TEXTS = (
    EVIL,
    "</script><script>window.taken=1</script>",
    "javascript:window.taken=1",
    "\u202eright to left \u05d0\u05d1",
    "long-" * 400,
)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
VIEWS = {
    "#/runs": "table.list tbody tr",
    "#/runs/first": "#gantt canvas",
    "#/runs/first/tasks": ".v-body a",
    "#/runs/first/tasks/6": "#attempts-section td",
    "#/compare/first/hostile": "#figures-of-both-section td",
    "#/sites": ".list td",
    "#/money": "#record-section .note",
    "#/plan": "#plan-text",
}
"""Each view with something that is there once it is drawn."""


class Page:
    """The page in a browser, signed in."""

    def __init__(self, browser: Any, served: Served) -> None:
        self.browser = browser
        self.served = served

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait for a condition, and return what it gave."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            found = condition()
            if found:
                return found
            time.sleep(0.05)
        text = self.browser.execute_script("return document.body.innerText")
        raise AssertionError(f"no {what} in:\n{text[:2000]}")

    def all(self, selector: str) -> list[Any]:
        return list(self.browser.find_elements("css selector", selector))

    def one(self, selector: str) -> Any:
        """Wait for an element."""
        return self.until(lambda: self.all(selector), selector)[0]

    def go(self, place: str, selector: str = "") -> None:
        """Open a view and wait until it is drawn."""
        self.browser.get(self.served.address + place)
        self.one(selector or VIEWS[place])

    def press(self, word: str, within: str = "main") -> None:
        """Press a button that begins with a word."""

        def found() -> Any:
            with suppress(STALE):  # drawn anew between the two looks
                for button in self.all(f"{within} button"):
                    if button.text.startswith(word) and button.is_enabled():
                        return button
            return None

        button = self.until(found, f"button {word}")
        self.browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
        button.click()

    def says(self, text: str) -> None:
        """Wait for a text."""
        self.until(lambda: text in self.one("body").text, text)

    def size(self, width: int, height: int = 1000, *, dark: bool = False) -> None:
        self.browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )
        scheme = "dark" if dark else "light"
        self.browser.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
        )

    def script(self, text: str, *values: Any) -> Any:
        return self.browser.execute_script(text, *values)

    def serious(self) -> list[Any]:
        """Return what axe-core finds serious; nothing where there is no axe-core."""
        return [] if axe_script() is None else serious_findings(self.browser)

    def has_a_dialog(self, word: str) -> None:
        """
        Check that a dialog can be used by keyboard alone, and leave it open.

        A button that begins with the word opens it with Enter, Tab stays within, Escape closes
        it, and the focus goes back to the button.
        """

        def focus() -> str:
            return str(
                self.script(
                    "const now = document.activeElement;"
                    "return now.closest('dialog') ? 'dialog' : now.textContent"
                )
            )

        def opened() -> None:
            (button, *_) = [one for one in self.all("main button") if one.text.startswith(word)]
            button.send_keys(webdriver.Keys.ENTER)
            self.one("dialog[open]")

        def press(key: str) -> None:
            webdriver.ActionChains(self.browser).send_keys(key).perform()

        opened()
        for _ in range(8):
            # After its last control the focus goes to the browser's own, which a page calls body.
            assert focus() == "dialog" or not self.script(
                "return document.activeElement !== document.body"
            )
            press(webdriver.Keys.TAB)
        assert not self.serious()
        press(webdriver.Keys.ESCAPE)
        self.until(lambda: not self.all("dialog"), "closed dialog")
        assert focus().startswith(word)
        opened()

    def is_well(self) -> None:
        """Check that nothing went wrong since the last time."""
        logged = [entry for entry in self.browser.get_log("browser") if entry["level"] != "INFO"]
        assert not logged
        assert not self.script("return document.documentElement.dataset.error || ''")
        assert not self.script("return window.taken || 0")


@pytest.fixture(scope="module")
def hostile(runs: Path) -> None:
    """A run beside the first one whose every text would like to be a part of the page."""
    tasks = [
        bursar.Task(
            id=f"{text[:150]}{number}",
            name=text[:150],
            steps=(
                bursar.Shell(f"printf '%s' '{text}'; printf '%s' '{text}' >&2; exit {number % 2}"),
            ),
            parameters={"p": text, text[:40]: number},
            outputs=(bursar.File(f"{text[:20].replace('/', '')}.txt"),) if number > 4 else (),
            runtime=0.01,
        )
        for number, text in enumerate(TEXTS)
    ]
    campaign = bursar.Campaign(
        name=EVIL, workflow=bursar.Workflow(tuple(tasks)), retry=bursar.Retry(attempts=1)
    )
    bursar.run(campaign, runs=runs, name="hostile", history="none")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium, with no way to any other machine."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(DRIVER)
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield driver
    finally:
        driver.quit()


@pytest.fixture(scope="module")
def signed_in(browser: Any, served: Served, hostile: None) -> Page:
    """The page after its code was typed."""
    page = Page(browser, served)
    browser.get(served.address)
    page.one("#code").send_keys(served.access.new_code())
    page.one("form button").click()
    page.one("table.list")
    return page


@pytest.fixture
def page(signed_in: Page) -> Iterator[Page]:
    """The page; nothing may have gone wrong at the end."""
    signed_in.size(1400)
    signed_in.browser.get("about:blank")
    signed_in.browser.get_log("browser")
    yield signed_in
    signed_in.is_well()


@pytest.mark.ci
def test_no_address_holds_the_token(page: Page) -> None:
    """Neither the page's own, nor those it asks for, nor the history of the browser."""
    page.go("#/runs/first")

    asked = page.script("return performance.getEntries().map((one) => one.name).join(' ')")
    assert page.served.access.token not in asked + page.browser.current_url
    assert page.served.access.token not in page.script("return document.documentElement.outerHTML")


@pytest.mark.parametrize("width", [1400, pytest.param(400, marks=pytest.mark.ci)])
@pytest.mark.parametrize("dark", [False, pytest.param(True, marks=pytest.mark.ci)])
def test_every_view_is_drawn_and_fits(page: Page, width: int, dark: bool) -> None:
    """Nothing is wider than the window, and nothing complains."""
    page.size(width, dark=dark)
    for place, selector in VIEWS.items():
        page.go(place, selector)
        wider = page.script("return document.documentElement.scrollWidth - innerWidth")
        assert wider <= 0, f"{place} is wider than {width} pixels by {wider}"
        page.is_well()


@pytest.mark.ci
def test_all_views_are_reached_by_clicking_in_turns(page: Page) -> None:
    """Round after round through the links, as a reader goes, without an error."""
    page.go("#/runs")
    for _ in range(3):
        for word, selector in (
            ("Plan", "#plan-text"),
            ("Sites", ".list td"),
            ("Money", "#record-section .note"),
            ("Runs", "table.list tbody tr"),
        ):
            page.browser.find_element("link text", word).click()
            page.one(selector)
        page.browser.find_element("link text", "first").click()
        page.one("#gantt canvas")
        page.browser.find_element("link text", "Tasks").click()
        page.one(".v-body a").click()
        page.one("#attempts-section td")
        page.browser.find_element("link text", "Overview").click()
        page.one("#gantt canvas")
        page.browser.find_element("link text", "Runs").click()
        page.one("table.list tbody tr")
        assert page.browser.current_url.endswith("#/runs")
        page.is_well()


def test_a_task_that_runs_shows_what_it_prints(page: Page, tmp_path: Path) -> None:
    """As it comes, as text and nothing else; once it has ended, what is kept stands there."""
    go = tmp_path / "go"
    command = f"echo '<img src=x>'; while ! test -e {go}; do sleep 0.05; done; echo end"
    text = f'[campaign]\nname = "talk"\n[tasks.talk]\ncommand = "{command}"\nruntime = 1\n'
    body = {"text": text, "name": "talk.toml", "folder": str(tmp_path)}
    run = page.served.client.post("/api/runs", json=body).json()["run"]
    page.go(f"#/runs/{run}/tasks/0", "#following-section pre")
    page.until(lambda: page.one("#following-section pre").text == "<img src=x>", "first line")
    assert not page.all("main img")
    # Another tab hides the page, which gives its connection up; back again, nothing comes twice.
    page.script("window.marked = document.querySelector('#following-section pre').firstChild")
    here = page.browser.current_window_handle
    page.browser.switch_to.new_window("tab")
    page.until(lambda: len(page.browser.window_handles) == 2, "tab")
    time.sleep(0.5)
    page.browser.close()
    page.browser.switch_to.window(here)
    page.until(
        lambda: page.script(
            "const now = document.querySelector('#following-section pre').firstChild;"
            "return now && now !== window.marked"
        ),
        "the output once more",
    )
    assert page.one("#following-section pre").text == "<img src=x>"
    go.write_text("")
    page.until(lambda: page.all("#output-section pre"), "what is kept")
    page.until(lambda: "end" in page.one("#output-section pre").text, "the whole")
    page.is_well()


@pytest.mark.ci
def test_ten_tabs_are_open_at_once(page: Page) -> None:
    """A browser opens six connections to one server; a tab that nobody sees holds none of them."""
    page.go("#/runs")
    first = page.browser.current_window_handle
    for _ in range(9):
        page.script("window.open(location.href)")
    tabs = [handle for handle in page.browser.window_handles if handle != first]
    for tab in tabs:
        page.browser.switch_to.window(tab)
        page.one("table.list tbody tr")
        page.says("live")
    for tab in tabs:
        page.browser.switch_to.window(tab)
        page.browser.close()
    page.browser.switch_to.window(first)
    assert page.browser.window_handles == [first]


def test_texts_of_tasks_are_only_texts(page: Page) -> None:
    """Names, parameters, output and file names come out as they were and do nothing."""
    for place, selector in (
        ("#/runs", "table.list tbody tr"),
        ("#/runs/hostile", "#failures-none, #failed-section td"),
        ("#/runs/hostile/tasks", ".v-body a"),
        ("#/compare/hostile/first", "#figures-of-both-section td"),
    ):
        page.go(place, selector)
        assert not page.all("main img, main script, main iframe")
        page.is_well()
    for number, text in enumerate(TEXTS):
        page.go(f"#/runs/hostile/tasks/{number}", "pre.output")
        page.until(lambda text=text: page.one("pre.output").text == text, "output")
        assert text in page.script("return document.querySelector('main').textContent")
        assert not page.all("main img, main script, main iframe")
        assert page.script("return document.documentElement.scrollWidth - innerWidth") <= 0
        page.is_well()


def test_a_run_s_own_file_shows_the_same_without_a_server(page: Page) -> None:
    """report.html opens as a file, asks nobody, and hostile texts do nothing there, too."""
    for run, tasks in (("first", 20), ("hostile", len(TEXTS))):
        file = page.served.runs / run / "report.html"
        page.browser.get(file.as_uri())
        page.one("#gantt canvas")
        page.browser.find_element("link text", "Tasks").click()
        page.says(f"{tasks} tasks")
        assert page.one(".v-body .v-row")
        page.one("input[type=search]").send_keys("exited with")
        page.says(f"of {tasks} tasks")
        page.browser.find_element("link text", "Overview").click()
        assert page.script("return document.documentElement.dataset.drawn")
        assert page.script("return performance.getEntriesByType('resource').length") == 0
        assert not page.all("main img, main iframe")
        page.is_well()


def test_large_data_of_a_run_s_own_file_are_compressed(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same page comes of them, and of a text that ends elements nothing is seen in the file."""
    record = read_run(RunFolder.open(page.served.runs, "hostile"))
    report_to(tmp_path / "large.html", record)
    plain = data_of_page((tmp_path / "large.html").read_text())
    monkeypatch.setattr("bursar.report.run_report.MOST_PLAIN", 0)
    report_to(tmp_path / "small.html", record)
    text = (tmp_path / "small.html").read_text()
    assert data_of_page(text) == plain
    assert "javascript:" not in text
    page.browser.get((tmp_path / "small.html").as_uri())
    page.one("#gantt canvas")
    page.browser.find_element("link text", "Tasks").click()
    page.says(f"{len(TEXTS)} tasks")
    assert page.script("return performance.getEntriesByType('resource').length") == 0
    page.is_well()


@pytest.mark.ci
def test_a_keyboard_is_enough(page: Page) -> None:
    """From the top to a task and its output by Tab, arrows and Enter; the focus is always seen."""
    keys = webdriver.Keys if hasattr(webdriver, "Keys") else None
    assert keys is not None
    page.go("#/runs")

    def press(key: str) -> Any:
        page.browser.switch_to.active_element.send_keys(key)
        return page.browser.switch_to.active_element

    def tab_to(text: str) -> Any:
        for _ in range(80):
            now = press(keys.TAB)
            style = page.script(
                "const s = getComputedStyle(arguments[0]); return s.outlineStyle", now
            )
            assert style != "none", now.get_attribute("outerHTML")[:200]
            if (now.text or now.get_attribute("aria-label") or "").startswith(text):
                return now
        raise AssertionError(f"Tab does not reach {text}")

    tab_to("first").send_keys(keys.ENTER)
    page.one("#gantt canvas")
    assert "Schedule" in tab_to("Schedule").get_attribute("aria-label")
    page.go("#/runs/first/tasks")
    tab_to("Tasks")
    page.one(".virtual").send_keys(keys.ARROW_DOWN)
    page.until(lambda: page.browser.switch_to.active_element.text.startswith("sweep-"), "focus")
    press(keys.ARROW_DOWN)
    press(keys.END)
    page.until(lambda: page.browser.switch_to.active_element.text == "sweep-19", "last row")
    press(keys.ENTER)
    page.one("#output-section pre")


CONTROLS = (
    "a[href], button:not([disabled]), input:not([disabled]):not([type=hidden]), "
    "select:not([disabled]), textarea:not([disabled]), summary, [tabindex='0']"
)


@pytest.mark.parametrize(
    "place",
    [
        pytest.param("#/runs", marks=pytest.mark.ci),
        "#/runs/first",
        pytest.param("#/runs/first/tasks/6", marks=pytest.mark.ci),
        pytest.param("#/plan", marks=pytest.mark.ci),
    ],
)
def test_tab_reaches_every_control(page: Page, place: str) -> None:
    """Each link, button, field, chart and box that scrolls, with a mark where the focus is."""
    page.go(place)
    number = "arguments[0].dataset.control ?? ''"
    names = page.script(
        """
        const all = [...document.querySelectorAll(arguments[0])];
        const seen = all.filter((one) => one.checkVisibility());
        seen.forEach((one, i) => { one.dataset.control = i; });
        return seen.map((one) => one.outerHTML.slice(0, 120));
        """,
        CONTROLS,
    )
    reached = set()
    for _ in range(len(names) + 5):
        # Not to the element: a field for a file takes keys as the file's name.
        webdriver.ActionChains(page.browser).send_keys(webdriver.Keys.TAB).perform()
        now = page.browser.switch_to.active_element
        at, outline = page.script(
            f"return [{number}, getComputedStyle(arguments[0]).outlineStyle]", now
        )
        if at:
            reached.add(int(at))
            assert outline != "none", names[int(at)]
    assert [name for i, name in enumerate(names) if i not in reached] == []


@pytest.mark.ci
def test_a_goal_is_changed_and_a_run_stopped(page: Page, campaign: Path) -> None:
    """Nothing happens before a confirmation; then what happened is on the page by itself."""
    text = SWEEP.replace('"echo', '"sleep 1.5; echo').replace('"sweep"', '"goals"')
    body = {"text": text, "name": "goals.toml", "folder": str(campaign.parent)}
    run = page.served.client.post("/api/runs", json=body).json()["run"]
    page.go(f"#/runs/{run}", "#figures")
    page.until(lambda: page.all("main .actions button"), "actions")
    assert not page.serious()
    page.has_a_dialog("Change goal")
    page.one("#amend-deadline").send_keys("30 min")
    page.one(".preview dl")
    assert not page.serious()
    summary = page.served.client.get(f"/api/runs/{run}").json()["summary"]
    assert summary["deadline_s"] == 600.0
    page.press("Change the goal", "dialog")
    page.until(lambda: not page.all("dialog"), "closed dialog")
    page.until(lambda: "30 min" in page.one("#figures").text, "new deadline")
    page.has_a_dialog("Stop")
    page.press("Cancel", "dialog")
    page.until(lambda: not page.all("dialog"), "closed dialog")
    assert page.served.client.get(f"/api/runs/{run}").json()["live"]
    page.press("Stop")
    page.press("Stop the run", "dialog")
    page.until(lambda: "interrupted" in page.one("main .head").text, "state")
    page.press("Resume")
    page.press("Cancel", "dialog")


def test_the_table_of_tasks_finds_filters_and_sorts(page: Page) -> None:
    """As a reader would look for the one task that failed."""
    page.go("#/runs/first/tasks")
    page.says("20 tasks")
    page.one("input[type=search]").send_keys("sweep-1")
    page.says("11 of 20 tasks")
    page.one("input[type=search]").clear()
    page.one("input[type=search]").send_keys(" ")
    page.script("document.querySelector('main select').value = 'failed'")
    page.script("document.querySelector('main select').dispatchEvent(new Event('change'))")
    page.says("1 of 20 tasks")
    page.one(".where").send_keys("nonsense >")
    complaint = page.until(lambda: page.one(".problem").text, "complaint")
    assert "where:1" in complaint
    # The refusal is the server's answer, which the browser itself says in the console, maybe later.
    refusal = "where=nonsense+%3E&"
    logged = lambda: [one["message"] for one in page.browser.get_log("browser")]  # noqa: E731
    page.until(lambda: any(refusal in one for one in logged()), "refusal in the console")


@pytest.mark.ci
def test_labels_and_goals_are_changed_after_a_look_at_what_comes_of_it(page: Page) -> None:
    """A goal is changed only once its forecast was shown; tags and notes are seen at once."""
    page.go("#/runs/first")
    page.press("Tags")
    page.one("#label-tags").send_keys("seen")
    page.one("#label-note").send_keys(EVIL)
    page.press("Save", "dialog")
    page.until(lambda: not page.all("dialog"), "closed dialog")
    page.says("seen")
    page.press("Change goal")
    (confirm,) = [one for one in page.all("dialog button") if one.text == "Change the goal"]
    assert not confirm.is_enabled()
    page.one("#amend-deadline").send_keys("+1 h")
    page.until(lambda: page.all(".preview dl") or page.all(".preview .problem"), "forecast")
    page.press("Cancel", "dialog")
    page.until(lambda: not page.all("dialog"), "closed dialog")
    page.browser.get_log("browser")


def test_a_campaign_is_planned_begun_and_followed(page: Page, campaign: Path) -> None:
    """Pasted, planned, confirmed; the run's page fills without being loaded again."""
    page.go("#/plan")
    page.press("Plan")
    page.says("Paste a campaign")
    text = campaign.read_text().replace('"sweep"', '"pasted"')
    text = text.replace("echo out", "sleep 0.2; echo")
    page.script("document.getElementById('plan-text').value = arguments[0]", text)
    page.one("#plan-folder").send_keys(str(campaign.parent))
    page.press("Plan")
    page.one("#front canvas")
    page.has_a_dialog("Run this")
    page.press("Run the campaign", "dialog")
    page.one(".tabs")
    page.script("window.same = 1")
    assert "#/runs/pasted" in page.browser.current_url
    page.until(lambda: page.one(".title").text.split()[-1] == "failed", "end of the run")
    page.says("19 of 20")
    assert page.script("return window.same") == 1
    page.press("Run failed again")
    page.press("Run again", "dialog")
    page.until(lambda: not page.all("dialog"), "closed dialog")


def test_prices_of_a_site_are_drawn_over_time(page: Page, tmp_path: Path) -> None:
    """Each price that a site is found to ask is a step of its chart, and a row below it."""
    sites, place = tmp_path / "priced.toml", "#/sites"
    page.go(place)
    for price in (1, 3, 2):
        sites.write_text(
            f"[site.dear]\nkind = 'local'\nprocessors = 2\nunit_price = '{price} EUR/core-hour'\n"
        )
        page.script("document.querySelector('#sites-file').value = arguments[0]", str(sites))
        page.press("Look")
        page.until(lambda price=price: f"Now {price} EUR" in page.one("body").text, "the price")
    chart = page.one("#prices-dear-section .chart canvas")
    assert chart.size["height"] > 100
    assert len(page.all("#prices-dear-section tbody tr")) == 3
    chart.find_element("xpath", "..").send_keys(webdriver.Keys.ARROW_RIGHT)
    page.says("EUR (asked here)")
    assert not page.serious()


def test_whoever_is_not_signed_in_sees_nothing(browser: Any, runs: Path) -> None:
    """A wrong code and a token of another process lead to the form again."""
    for other in serving(runs):
        page = Page(browser, other)
        browser.get(other.address + "#/runs/first")
        page.one("#code")
        assert not page.serious()
        browser.execute_script("sessionStorage.setItem('bursar-token', 'of another process')")
        browser.get(other.address)
        browser.refresh()
        page.one("#code")
        assert not page.all("table.list")
        browser.get_log("browser")  # the refusals


@pytest.mark.skipif(axe_script() is None, reason=MISSING)
@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing_serious(page: Page, dark: bool) -> None:
    """Roles, names and contrasts of every view and of a run's own file, in both schemes."""
    page.size(400 if dark else 1400, dark=dark)
    for place, selector in VIEWS.items():
        page.go(place, selector)
        assert not page.serious()
    for place, selector in (("", "#gantt canvas"), ("#tasks", ".v-body .v-row")):
        file = page.served.runs / "first" / "report.html"
        page.browser.get("about:blank")
        page.browser.get(file.as_uri() + place)
        page.one(selector)
        assert not page.serious()


@pytest.mark.parametrize("word", ["Change goal", "Run failed again", "Tags"])
@pytest.mark.parametrize("dark", [False, pytest.param(True, marks=pytest.mark.ci)])
def test_dialogs_are_used_by_keyboard(page: Page, word: str, dark: bool) -> None:
    """Of a run that has ended."""
    page.size(400 if dark else 1400, dark=dark)
    page.go("#/runs/first")
    page.until(lambda: len(page.all("main .actions button")) == 4, "actions")
    page.has_a_dialog(word)
    assert page.all("dialog[open]")


def test_the_modules_are_small_and_ask_for_nothing_elsewhere() -> None:
    """Under 300 KB, nothing of others, and no way for text to become part of the page."""
    folder = Path(bursar.__file__).parent / "page" / "assets"
    files = {file.name: file.read_text() for file in folder.iterdir()}

    assert sum(len(text.encode()) for text in files.values()) < 300_000
    for name, text in files.items():
        assert not re.search(r"(?:https?:)?//[a-z0-9-]+\.[a-z]", text), name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write", text), name
        assert not re.search(r"\beval\(|new Function|localStorage|cookie", text), name
        if name.endswith(".html"):
            assert not re.search(r"\sstyle=|\son[a-z]+=", text), name
