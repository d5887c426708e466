"""Who may ask what, beyond the matrix of every route and caller (``tests/contracts``)."""

import asyncio
from pathlib import Path

from tests.service.http.api_rig import World

from bursar.remote.routes import ROUTES


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
