"""What is answered to requests that are wrong."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.service.http.api_rig import World, problem

from bursar.remote.messages import MOST_TASKS
from bursar.service.config import HttpLimits

JSON = {"content-type": "application/json"}
LINES = {"content-type": "application/x-ndjson"}


def ask(world: World, method: str, path: str, *, token: str | None = "all", **more: Any) -> Any:
    """One request to a service where Ann has the instance "mine"."""

    async def main() -> httpx.Response:
        if "mine" not in world.engine.held:
            world.engine.make("ann", "mine")
        async with world.client(token) as client:
            return await client.request(method, path, **more)

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("method", "path", "more", "status", "where"),
    [
        ("GET", "/nowhere", {}, 404, ""),
        ("GET", "http://localhost/v2/site", {}, 404, ""),
        ("GET", "/instances/", {}, 404, ""),
        ("GET", "/instances/mine/tasks/x/stdout", {}, 404, ""),
        ("GET", "/instances/mine/tasks/-1/stdout", {}, 404, ""),
        ("GET", "/instances/mine/tasks/0/stdin", {}, 404, ""),
        ("GET", "/instances/" + "x" * 300, {}, 404, ""),
        ("GET", "/instances/%ff", {}, 400, "path"),
        ("POST", "/site", {"json": {}}, 405, ""),
        ("PATCH", "/instances/mine", {"json": {}}, 405, ""),
        ("OPTIONS", "/instances", {}, 405, ""),
        ("POST", "/instances", {"content": b"{", "headers": JSON}, 400, ""),
        ("POST", "/instances", {"content": b"", "headers": JSON}, 400, ""),
        ("POST", "/instances", {"content": b"\xff\xfe", "headers": JSON}, 400, ""),
        ("POST", "/instances", {"content": b"[" * 100_000, "headers": JSON}, 422, ""),
        ("POST", "/instances", {"content": b"{}"}, 415, "Content-Type"),
        ("POST", "/instances", {"data": {"label": "x"}}, 415, "Content-Type"),
        ("POST", "/instances", {"json": {"label": 1}}, 422, "label"),
        ("POST", "/instances", {"json": {"nonsense": 1}}, 422, ""),
        ("POST", "/instances", {"json": {"keep": -1}}, 422, "keep"),
        (
            "POST",
            "/instances",
            {"json": {}, "headers": {"idempotency-key": "x" * 201}},
            400,
            "Idempotency-Key",
        ),
        ("POST", "/instances/mine/tasks", {"json": {"tasks": []}}, 422, "tasks"),
        (
            "POST",
            "/instances/mine/tasks",
            {"json": {"tasks": [{"command": [1]}]}},
            422,
            "tasks[0].command[0]",
        ),
        (
            "POST",
            "/instances/mine/tasks",
            {"json": {"tasks": [{"after": [10**26]}]}, "headers": {"idempotency-key": "k"}},
            422,
            "tasks[0].after[0]",
        ),
        ("POST", "/instances/mine/tasks", {"content": b"", "headers": LINES}, 422, "tasks"),
        (
            "POST",
            "/instances/mine/tasks",
            {"content": b'{}\n{"processors":0}', "headers": LINES},
            422,
            "tasks[1].processors",
        ),
        ("POST", "/instances/mine/tasks", {"content": b"{}\n{", "headers": LINES}, 400, "tasks"),
        (
            "POST",
            "/instances/mine/tasks",
            {"content": b"{}\n" * (MOST_TASKS + 1), "headers": LINES},
            422,
            "tasks",
        ),
        (
            "POST",
            "/instances/mine/tasks",
            {"content": b"{}\n" * (8 * MOST_TASKS + 1), "headers": LINES},
            413,
            "tasks",
        ),
        (
            "POST",
            "/instances/mine/tasks",
            {"content": b"\x1f\x8b", "headers": LINES | {"content-encoding": "gzip"}},
            415,
            "Content-Encoding",
        ),
        ("GET", "/instances/mine/results?after=-1", {}, 400, "query.after"),
        ("GET", "/instances/mine/results?after=x", {}, 400, "query.after"),
        ("GET", "/instances/mine/results?wait=61", {}, 400, "query.wait"),
        ("GET", "/instances/mine/results?wait=nan", {}, 400, "query"),
        ("GET", "/instances/mine/results?after=1&after=2", {}, 400, "query"),
        ("GET", "/instances/mine/results?sort=up", {}, 400, "query"),
        ("GET", "/instances/mine/results?after=%ff", {}, 400, "query"),
        ("GET", "/instances?" + "&".join(f"a{i}=1" for i in range(50)), {}, 400, "query"),
        ("GET", "/site?x=1", {}, 400, "query"),
        ("DELETE", "/instances/mine/results", {}, 400, "query"),
        (
            "GET",
            "/instances/mine/events",
            {"headers": {"last-event-id": "x"}},
            400,
            "Last-Event-ID",
        ),
        ("POST", "/trade/messages", {"json": {"kind": "no-such"}}, 422, "kind"),
        ("PUT", "/trade/prices", {"json": {"base": -1.0}}, 422, ""),
        ("POST", "/instances/mine/archive", {"json": {}}, 415, "Content-Type"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_bad_request_is_answered_by_a_problem_that_says_where(
    world: World, method: str, path: str, more: dict[str, Any], status: int, where: str
) -> None:
    """
    Whatever is wrong is the client's mistake, and the answer names its place.
    """
    response = ask(world, method, path, **more)

    assert response.status_code == status, response.text
    found = problem(response)
    assert found.where == where
    assert found.type.startswith("/problems/")
    assert found.detail
    assert "\n" not in found.detail
    assert not world.listener.failures


def test_methods_that_are_there_are_told(world: World) -> None:
    """
    405 without Allow leaves a client guessing (RFC 9110, section 15.5.6).
    """
    assert ask(world, "PATCH", "/instances/mine").headers["allow"] == "DELETE, GET"


def test_head_is_get_without_its_body(world: World) -> None:
    """
    RFC 9110, section 9.3.2: the same headers.
    """
    got, headed = ask(world, "GET", "/site"), ask(world, "HEAD", "/site")

    assert headed.status_code == 200
    assert headed.content == b""
    assert headed.headers["content-length"] == got.headers["content-length"]


def test_a_fault_of_ours_tells_its_name_and_nothing_else(world: World) -> None:
    """
    What broke is for the log; a client could learn from it.
    """
    world.engine.make("ann", "mine")
    world.engine.fault = RuntimeError("secret path /var/lib/bursar")

    response = ask(world, "GET", "/instances/mine")

    assert response.status_code == 500
    ((incident, route, error),) = world.listener.failures
    assert route == "instance"
    assert error is world.engine.fault
    assert incident in problem(response).detail
    assert "secret" not in response.text


def test_requests_are_told_of_without_names_and_handles(world: World) -> None:
    """
    Lines of the log say what was asked and how it went; not by whom, and of which instance.
    """
    ask(world, "GET", "/instances/mine")
    ask(world, "GET", "/nowhere")
    first, second = world.listener.served_requests

    assert (first["method"], first["route"], first["status"]) == ("GET", "instance", 200)
    assert "ann" not in first["who"]
    assert first["who"]
    assert (second["method"], second["route"], second["status"]) == ("", "", 404)
    assert "mine" not in str(world.listener.served_requests)


def test_a_body_larger_than_announced_is_cut_off(tmp_path: Path) -> None:
    """
    A length that is announced is refused at once; one that is not is counted.
    """
    world = World(tmp_path, HttpLimits(json_bytes=100))
    taken: list[int] = []

    async def endless() -> Any:
        for number in range(1000):
            taken.append(number)
            yield b" " * 60

    announced = ask(world, "POST", "/instances", content=b" " * 101, headers=JSON)
    counted = ask(world, "POST", "/instances", content=endless(), headers=JSON)

    assert (announced.status_code, counted.status_code) == (413, 413)
    assert problem(counted).type == "/problems/too-large"


def test_all_bodies_together_have_a_bound(tmp_path: Path) -> None:
    """
    Many clients together cannot fill the memory, and each is told to come again.
    """
    world = World(tmp_path, HttpLimits(buffered_bytes=80))

    refused = ask(world, "POST", "/instances", content=b" " * 60 + b"{}", headers=JSON)
    taken = ask(world, "POST", "/instances", content=b" " * 30 + b"{}", headers=JSON)

    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1
    assert taken.status_code == 201


def test_a_user_who_asks_too_often_waits(tmp_path: Path) -> None:
    """
    One user's loop does not take the service from the others, and ends by itself.
    """
    world = World(tmp_path, HttpLimits(rate=2.0, burst=3.0))

    statuses = [ask(world, "GET", "/account").status_code for _ in range(4)]
    refused = ask(world, "GET", "/account")
    other = ask(world, "GET", "/account", token="other")
    world.clock.now += problem(refused).retry_after or 0.0
    again = ask(world, "GET", "/account")

    assert statuses == [200, 200, 200, 429]
    assert refused.headers["retry-after"] == "1"
    assert other.status_code == 200
    assert again.status_code == 200


def test_a_user_may_ask_more_or_less_often_than_others(tmp_path: Path) -> None:
    """
    Ann has a pace of her own, and few places; Bob has what everybody has.
    """
    own = HttpLimits(rate=0.5, burst=1.0, requests=1)
    world = World(tmp_path, HttpLimits(rate=2.0, burst=3.0), own_limits={"ann": own})

    mine = [ask(world, "GET", "/account") for _ in range(2)]
    others = [ask(world, "GET", "/account", token="other").status_code for _ in range(4)]
    world.clock.now += 1.5
    too_soon = ask(world, "GET", "/account")
    world.clock.now += 0.5
    in_time = ask(world, "GET", "/account")

    assert [answer.status_code for answer in mine] == [200, 429]
    assert mine[1].headers["retry-after"] == "2"
    assert others == [200, 200, 200, 429]
    assert (too_soon.status_code, in_time.status_code) == (429, 200)


def test_guessing_is_slowed_down_and_keeps_nobody_out(tmp_path: Path) -> None:
    """
    Failed attempts run out; who knows the secret comes in from the same address all the same.
    """
    world = World(tmp_path, HttpLimits(failure_rate=0.5, failure_burst=2.0))

    guesses = [ask(world, "GET", "/account", token="bad").status_code for _ in range(3)]

    assert guesses == [401, 401, 429]
    assert ask(world, "GET", "/account").status_code == 200


def test_strangers_cannot_keep_the_service_busy(tmp_path: Path) -> None:
    """
    What needs no identity, and what is not there, is counted by address.
    """
    world = World(tmp_path, HttpLimits(unauthenticated_rate=1.0, unauthenticated_burst=2.0))

    found = [
        ask(world, "GET", path, token=None).status_code
        for path in ("/health", "/nowhere", "/health", "/nowhere")
    ]

    assert found == [200, 404, 429, 429]
    assert ask(world, "GET", "/account").status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"host": "localhost.evil.example"}, 421),
        ({"host": "localhost@evil.example"}, 421),
        ({"host": ""}, 421),
        ({"host": "[::1]:7480"}, 200),
        ({"host": "LOCALHOST:99"}, 200),
        ({"host": "site.example"}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "https://localhost"}, 403),
        ({"origin": "http://localhost"}, 200),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "none"}, 200),
    ],
    ids=str,
)
def test_pages_of_others_cannot_use_a_browser_to_ask(
    tmp_path: Path, headers: dict[str, str], status: int
) -> None:
    """
    Without tokens, on this machine, the browser is as good as the user: so its word counts.
    """
    world = World(tmp_path, names=frozenset({"site.example"}))

    response = ask(world, "GET", "/account", headers=headers)

    assert response.status_code == status
    if status != 200:
        problem(response)


def test_headers_that_say_who_one_is_are_there_once(world: World) -> None:
    """
    Two parties that read different ones of two headers would disagree on who asks.
    """
    twice = [("authorization", "Bearer read"), ("authorization", "Bearer admin")]

    response = ask(world, "GET", "/account", token=None, headers=twice)

    assert response.status_code == 400
    assert problem(response).where == "authorization"


def test_administrators_see_what_was_spent_and_in_which_currency(world: World) -> None:
    """
    The engine knows nothing of money: the desk says it.
    """
    seen = ask(world, "GET", "/admin/overview", token="admin").json()

    assert (seen["spent"], seen["currency"]) == (7, "EUR")


def test_what_binds_is_durable_before_it_is_said(world: World) -> None:
    """
    Deals, deposits, tokens and prices: the journal is waited for.
    """
    message = {"kind": "cancel", "deal": "d", "sender": "ann", "to": "site", "number": 1}
    requests: list[tuple[str, str, str, dict[str, Any]]] = [
        ("POST", "/trade/messages", "all", {"json": message}),
        ("DELETE", "/trade/agreements/deal-1", "all", {}),
        ("PUT", "/trade/prices", "all", {"json": {"base": 2.0}}),
        ("POST", "/admin/tokens", "admin", {"json": {"user": "ann", "scopes": ["read"]}}),
        ("DELETE", "/admin/tokens/t1", "admin", {}),
        ("POST", "/admin/accounts/ann/deposit", "admin", {"json": {"amount": 5, "key": "k"}}),
    ]

    for number, (method, path, token, more) in enumerate(requests, 1):
        response = ask(world, method, path, token=token, **more)
        assert response.is_success, response.text
        assert world.journal.synced == number
