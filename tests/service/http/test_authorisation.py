"""Who may ask what: every route with every kind of caller."""

import asyncio
from pathlib import Path

import httpx
import pytest
from tests.service.http.api_rig import TOKENS, World, problem

from bursar.service.http.routes import ROUTES, ApiRoute
from bursar.service.interfaces import SCOPES

NOBODY = ("none", "bad", "expired")
ROLES = (*NOBODY, *SCOPES, "all", "other", "admin")

BODIES: dict[str, dict[str, object]] = {
    "create-instance": {"json": {}},
    "submit": {"json": {"tasks": [{"command": ["true"]}]}},
    "cancel": {"json": {}},
    "put-file": {"content": b"data"},
    "put-archive": {"content": b"\0" * 1024, "headers": {"content-type": "application/x-tar"}},
    "copy-files": {"json": {"source": "mine", "files": ["there.txt"]}},
    "reprice": {"json": {"base": 1.0}},
    "create-token": {"json": {"user": "ann", "scopes": ["read"]}},
    "deposit": {"json": {"amount": 1, "key": "k"}},
    "drain": {"json": {}},
    "forget": {"params": {"through": 1}},
}

OWNED = ("{id}", "{agreement}")
"""Parts of a path that name what is somebody's."""


def expected(route: ApiRoute, role: str) -> int:
    """
    The rule: nobody gets into what is not public; then the scope counts; then whose it is.
    """
    if route.access == "public":
        return route.status
    if role in NOBODY:
        return 401
    needed = "admin" if route.access == "scrape" else route.access
    if needed not in TOKENS[role].scopes:
        return 403
    if any(part in route.path for part in OWNED) and TOKENS[role].user != "ann":
        return 404
    return route.status


def address(route: ApiRoute) -> str:
    path = route.path.replace("*}", "}")
    values = {
        "id": "mine",
        "task": "0",
        "stream": "stdout",
        "name": "there.txt",
        "agreement": "deal-1",
        "token": "t1",
        "user": "ann",
    }
    return path.format(**values)


def body_of(route: ApiRoute, user: str) -> dict[str, object]:
    if route.name == "trade":
        template = {"processors": 1, "seconds": 1.0}
        return {
            "json": {
                "kind": "request-quote",
                "deal": "d",
                "sender": user,
                "to": "site",
                "number": 1,
                "template": template,
            }
        }
    return dict(BODIES.get(route.name, {}))


async def ask(world: World, route: ApiRoute, role: str) -> httpx.Response:
    token = None if role == "none" else role
    user = TOKENS[role].user if role in TOKENS else "ann"
    async with world.client(token) as client:
        asked = client.build_request(route.method, address(route), **body_of(route, user))
        if route.name != "events":
            return await client.send(asked)
        # It goes on for ever: what comes first is enough.
        ending = asyncio.get_running_loop().call_later(0.01, world.api.end_streams)
        try:
            return await client.send(asked)
        finally:
            ending.cancel()


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_every_route_answers_every_role_by_one_rule(
    route: ApiRoute, role: str, tmp_path: Path
) -> None:
    """
    A route that forgets to ask who it is, what it may or whose it is breaks the rule.
    """
    world = World(tmp_path)

    async def main() -> httpx.Response:
        held = world.engine.make("ann", "mine")
        held.tasks = []
        (held.home / "files" / "there.txt").write_text("there")
        world.engine.held["mine"].tasks.append(None)  # type: ignore[arg-type]
        world.engine.finish("mine", 0)
        (held.home / "logs" / "0.1.stdout").write_text("long")
        return await ask(world, route, role)

    response = asyncio.run(main())
    world.api.close()

    assert response.status_code == expected(route, role), response.text
    if response.status_code >= 400:
        assert problem(response).detail
    if response.status_code == 401:
        assert response.headers["www-authenticate"] == "Bearer"


def test_what_is_anothers_looks_as_what_never_was(world: World) -> None:
    """
    Nobody learns from an answer that a handle is somebody's.
    """

    async def main() -> list[tuple[int, bytes, dict[str, str]]]:
        world.engine.make("ann", "mine")
        answers = []
        async with world.client("other") as client:
            for handle in ("mine", "never"):
                for path in ("", "/tasks", "/results", "/files", "/files/x", "/events"):
                    found = await client.get(f"/instances/{handle}{path}")
                    answers.append((found.status_code, found.content, dict(found.headers)))
        return answers

    answers = asyncio.run(main())

    assert answers[:6] == answers[6:]
    assert {status for status, _, _ in answers} == {404}


def test_named_users_may_read_the_metrics(tmp_path: Path) -> None:
    """
    A monitor needs no administrator's token; but who is not named does.
    """
    world = World(tmp_path, scrapers=frozenset({"ann"}))

    async def main() -> list[int]:
        found = []
        for token in ("read", "submit", "other", "admin"):
            async with world.client(token) as client:
                found.append((await client.get("/metrics")).status_code)
        return found

    assert asyncio.run(main()) == [200, 403, 200, 200]  # "other" is an administrator, too


def test_names_of_routes_are_unique_and_methods_do_not_clash() -> None:
    """
    The table has each route once, or the matrix would miss one of two.
    """
    assert len({route.name for route in ROUTES}) == len(ROUTES)
    assert len({(route.method, route.path) for route in ROUTES}) == len(ROUTES)
