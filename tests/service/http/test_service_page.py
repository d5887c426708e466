"""The page of a service: there for everybody, with no secret, and nothing else beside it."""

import asyncio
from typing import Any

import httpx
import pytest
from tests.service.http.api_rig import World

from bursar.page.page_files import page_files


def ask(world: World, method: str, url: str, **more: Any) -> httpx.Response:
    """Make one request without credentials."""

    async def main() -> httpx.Response:
        async with world.client(None) as client:
            return await client.request(method, url, **more)

    return asyncio.run(main())


def assert_guarded(answer: httpx.Response) -> None:
    """Hold the headers that keep foreign code out, each of which is there once."""
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert answer.headers.get_list("x-content-type-options") == ["nosniff"]


def test_the_page_and_its_files_are_there_without_a_token(world: World) -> None:
    """A browser has to load them before anybody can sign in; a policy forbids foreign code."""
    page = ask(world, "GET", "http://localhost/")
    assert page.status_code == 200
    assert '{"kind": "service"}' in page.text
    for name, file in page_files().items():
        answer = ask(world, "GET", f"http://localhost/page/{name}")
        assert answer.content == file.content
        again = {"if-none-match": answer.headers["etag"]}
        assert ask(world, "GET", f"http://localhost/page/{name}", headers=again).status_code == 304
        assert_guarded(answer)
    assert_guarded(page)


def test_a_link_of_another_site_may_lead_to_the_page(world: World) -> None:
    """As to any site; what the page asks for afterwards comes from the page itself."""
    headers = {"sec-fetch-site": "cross-site"}
    assert ask(world, "GET", "http://localhost/", headers=headers).status_code == 200
    assert ask(world, "GET", "/site", headers=headers).status_code == 403


@pytest.mark.parametrize(
    ("method", "url", "status"),
    [
        ("POST", "http://localhost/", 405),
        ("GET", "http://localhost/page/", 404),
        ("GET", "http://localhost/page/none.js", 404),
        ("GET", "http://localhost/page/..%2fpage_files.py", 404),
        ("GET", "http://localhost/page/../__init__.py", 404),
        ("GET", "http://evil.example/", 421),
    ],
)
def test_nothing_else_is_there(world: World, method: str, url: str, status: int) -> None:
    """Neither other files nor other names of the service."""
    assert ask(world, method, url).status_code == status
