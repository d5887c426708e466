"""The page of a service in a real browser: signing in by token, and what a user sees there."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("selenium.webdriver", reason="selenium drives the browser")
from tests.dashboard import test_page_views as page_views
from tests.service.service_process import served as serving_service

from bursar.page.page_files import page_files
from bursar.remote.access import Access
from bursar.remote.admin_messages import NewToken
from bursar.remote.client import ServiceClient
from bursar.remote.messages import TaskSpec

pytestmark = page_views.pytestmark
browser = page_views.browser
LABEL = "<img src=x onerror=window.taken=1>"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Any]:
    """A service with an instance whose label and output would like to be part of the page."""
    with serving_service(tmp_path / "service") as one, one.client() as client:
        handle = client.create_instance(label=LABEL).id
        client.submit(handle, [TaskSpec(shell=f"echo '{LABEL}'; exit 3")])
        (result,) = client.results(handle)
        assert result.state == "failed"
        yield one


@pytest.mark.ci
def test_a_user_sees_instances_output_service_and_money(service: Any, browser: Any) -> None:
    """A wrong token is refused in a sentence; nothing of a task becomes part of the page."""
    page = page_views.Page(browser, service)
    address = f"http://127.0.0.1:{service.port}/"
    browser.get(address)
    page.one("#token").send_keys("wrong")
    assert not page.serious()
    page.one("form button").click()
    page.says("does not know this token")
    page.one("#token").clear()
    page.one("#token").send_keys(service.token)
    page.one("form button").click()
    page.one("table a")
    assert not page.serious()
    page.one("table a").click()
    page.says("exited with status 3")
    assert not page.serious()
    page.has_a_dialog("Delete")
    page.press("Cancel", "dialog")
    page.until(lambda: not page.all("dialog"), "closed dialog")
    page.press("stdout")
    page.until(lambda: LABEL in page.one("#output-section pre").text, "output")
    with service.client() as client:
        handle = client.instances()[0].id
        task = client.submit(handle, [TaskSpec(shell="printf 'so \\303\\274 far'; sleep 600")])
    # The page suggests the number of a task that runs, at its next look.
    number = page.one("#follow-number")
    page.until(lambda: number.get_attribute("value") == str(task[0]), "its number")
    page.press("Follow")
    page.until(lambda: "so ü far" in page.one("#running-section pre").text, "running output")
    views = {"#/runs": "1 of 2", "#/sites": "Everybody's instances", "#/money": "Agreements"}
    for width, dark in ((1400, False), (400, True)):
        page.size(width, dark=dark)
        for place, text in views.items():
            browser.get(address + place)
            page.says(text)
            assert not page.serious()
            wider = "return document.documentElement.scrollWidth - innerWidth"
            assert page.script(wider) <= 0, place
            assert service.token not in browser.current_url
    assert browser.execute_script("return window.taken") is None
    assert "data-error" not in browser.page_source.partition(">")[0]


def test_a_user_who_is_no_administrator_sees_what_is_theirs(service: Any, browser: Any) -> None:
    """Nothing of others is shown or asked for again and again; what cannot be done is not shown."""
    with service.client() as client:
        token = client.create_token(NewToken(user="ann", scopes=["submit", "read"])).token
    access = Access(url=f"http://127.0.0.1:{service.port}", token=token)
    with ServiceClient(access) as client:
        done, at_work = (client.create_instance(label=name).id for name in ("done", ""))
        client.submit(done, [TaskSpec(shell="true")])
        client.results(done)
        client.submit(at_work, [TaskSpec(shell="sleep 1"), TaskSpec(shell="echo mine; sleep 600")])
        while not client.instance(at_work).results:
            time.sleep(0.1)
    page = page_views.Page(browser, service)
    address = f"http://127.0.0.1:{service.port}/"
    browser.get(address)
    page.one("#token").send_keys(token)
    page.one("form button").click()
    page.until(lambda: len(page.all("table a")) == 2, "both instances and no other")
    page.says("0 SU")
    browser.get(f"{address}#/runs/{done}")
    page.says("1 of 1")
    assert not page.one("#running-section").is_displayed()
    assert [one.text for one in page.all("main .head button") if one.is_displayed()] == ["Delete …"]
    browser.get(f"{address}#/runs/{at_work}")
    page.until(lambda: page.one("#follow-number").get_attribute("value") == "1", "its number")
    page.press("Follow")
    page.until(lambda: "mine" in page.one("#running-section pre").text, "running output")
    browser.get_log("browser")
    browser.get(f"{address}#/sites")
    page.says("On offer")
    time.sleep(4.5)  # longer than between two looks of an administrator
    refused = [one["message"] for one in browser.get_log("browser") if "403" in one["message"]]
    assert len(refused) == 1
    assert "Everybody" not in page.one("body").text


def test_all_files_of_the_page_are_small() -> None:
    """Under 300 KB in all, and no module names an address of another machine."""
    files = page_files()
    assert sum(len(file.content) for file in files.values()) < 300_000
    for name, file in files.items():
        assert not re.search(rb"https?://(?!www\.w3\.org)", file.content), name
