"""What is tried again, how long, and what is told of it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.remote.conftest import BodyWithoutConnection, Line, client_of, params_of, simulated

from bursar.model.errors import InputError, SiteError
from bursar.remote import messages as api
from bursar.remote.access import Access
from bursar.remote.admin_messages import NewToken, TokenInfo
from bursar.remote.async_client import AsyncServiceClient
from bursar.remote.http_transport import (
    ClientRequest,
    ClientResponse,
    ConnectionFailed,
    InvalidServiceResponse,
    RemoteProblem,
    ServiceUnreachable,
    TransportError,
)

SITE = api.SiteInfo(name="physics", processors=4, free=2)
TASK = api.TaskSpec(command=("true",))


def answer(value: Any, status: int = 200, **headers: str) -> ClientResponse:
    """A value as JSON."""
    return ClientResponse(status, content=msgspec.json.encode(value), headers=headers)


def problem(kind: str, status: int, **more: Any) -> ClientResponse:
    """A problem document."""
    document = api.Problem(type=f"/problems/{kind}", title=kind, status=status, **more)
    return ClientResponse(
        status,
        content=msgspec.json.encode(document),
        headers={"Content-Type": "application/problem+json"},
    )


def in_turn(*answers: ClientResponse | Exception) -> Line:
    """A service that answers so, one after the other."""
    rest: Iterator[ClientResponse | Exception] = iter(answers)

    def handler(_: ClientRequest) -> ClientResponse:
        said = next(rest)
        if isinstance(said, Exception):
            raise said
        return said

    return Line(handler)


def test_what_is_lost_on_the_way_is_asked_again(notices: list[str]) -> None:
    """Until there is an answer; people are told once."""
    line = in_turn(
        ConnectionFailed("refused"), TransportError("reset"), TimeoutError(), answer(SITE)
    )
    assert simulated(client_of(line, notice=notices.append).site()) == SITE
    assert len(line.requests) == 4
    assert len(notices) == 1
    assert notices[0].startswith("site.example.org: cannot be reached")


@pytest.mark.parametrize("status", [429, 502, 503, 504, 507])
def test_what_is_refused_for_now_is_asked_again(status: int) -> None:
    """No sooner than the service says."""
    line = in_turn(problem("later", status, retry_after=7.5), answer(SITE))
    assert simulated(client_of(line).site()) == SITE
    assert line.times[1] >= 7.5


def test_a_service_that_is_not_ready_says_so() -> None:
    """That is its answer, not a reason to ask again."""
    health = api.Health(status="draining", problem="it is to end")
    assert simulated(client_of(in_turn(answer(health, 503))).ready()) == health


def test_a_header_says_when_to_come_again_too() -> None:
    """That of a proxy, which writes no problem document."""
    line = in_turn(ClientResponse(503, headers={"Retry-After": "9"}), answer(SITE))
    assert simulated(client_of(line).site()) == SITE
    assert line.times[1] >= 9


def test_patience_ends() -> None:
    """With the last failure, after about that long."""

    def handler(_: ClientRequest) -> ClientResponse:
        raise ConnectionFailed("no")

    line = Line(handler)
    with pytest.raises(ServiceUnreachable, match=r"^site\.example\.org: ") as failure:
        simulated(client_of(line, patience=60.0).site())
    assert failure.value.transient
    assert 45 <= line.times[-1] <= 60


def test_who_does_not_answer_is_left() -> None:
    """After the timeout; and the client lives on."""

    class Silent:
        async def send(self, _: ClientRequest) -> ClientResponse:
            await asyncio.sleep(1e6)
            raise AssertionError

    async def ask() -> float:
        client = AsyncServiceClient(
            "https://x.example.org", transport=Silent(), timeout=5.0, patience=0.0
        )
        with pytest.raises(ServiceUnreachable, match="no answer within 5 s"):
            await client.site()
        return asyncio.get_running_loop().time()

    assert simulated(ask()) == pytest.approx(5.0)


def test_a_stream_that_falls_silent_is_left() -> None:
    """Also one whose head had come: the page after it is asked for again."""

    class Stuck(BodyWithoutConnection):
        async def __aiter__(self) -> Any:
            yield b"\n"
            await asyncio.sleep(1e6)

    pages = [
        ClientResponse(200, headers={"Bursar-Next": "0", "Bursar-Done": "false"}),
        ClientResponse(200, headers={"Bursar-Next": "0", "Bursar-Done": "true"}),
    ]

    def handler(request: ClientRequest) -> ClientResponse:
        if "follow" in params_of(request):
            return ClientResponse(200, stream=Stuck())
        return pages.pop(0)

    async def collect() -> list[api.Result]:
        return [result async for result in client_of(handler).results("h")]

    assert simulated(collect()) == []
    assert not pages


def test_a_submission_whose_answer_is_lost_is_sent_again_under_its_key() -> None:
    """The very same bytes: the service adds nothing the second time."""
    line = in_turn(TransportError("reset"), answer(api.Submitted(first=4, count=2)))
    numbers = simulated(client_of(line).submit("h", [TASK, TASK]))
    first, second = line.requests
    assert list(numbers) == [4, 5]
    assert first.content == second.content
    assert first.headers["Idempotency-Key"] == second.headers["Idempotency-Key"]


def test_each_piece_and_each_submission_has_a_key_of_its_own() -> None:
    """Otherwise the second would be taken for a repeat."""
    line = in_turn(*(answer(api.Submitted(first=n, count=1)) for n in range(4)))
    client = client_of(line)

    async def submit() -> None:
        await client.submit("h", [TASK])
        await client.submit("h", [TASK])
        await client.submit("h", [TASK], key="mine")

    simulated(submit())
    keys = [request.headers["Idempotency-Key"] for request in line.requests]
    assert len(set(keys)) == 3
    assert keys[2] == "mine.0"


def test_numbers_of_pieces_are_joined() -> None:
    """Also when another client's tasks lie between."""
    line = in_turn(
        answer(api.Submitted(first=0, count=20_000)),
        answer(api.Submitted(first=20_000, count=20_000)),
        answer(api.Submitted(first=50_000, count=1)),
    )
    numbers = simulated(client_of(line).submit("h", (TASK for _ in range(40_001))))
    assert len(numbers) == 40_001
    assert (numbers[0], numbers[39_999], numbers[40_000]) == (0, 39_999, 50_000)


@pytest.mark.parametrize("key", ["two words", "x" * 250, "line\nend"])
def test_a_key_that_fits_no_header_is_refused(key: str) -> None:
    """Before anything is sent."""
    line = in_turn()
    with pytest.raises(InputError, match="key"):
        simulated(client_of(line).create_instance(key=key))


def test_an_instance_that_went_with_a_lost_answer_is_destroyed() -> None:
    """The second try finds nothing: that is what was wanted."""
    line = in_turn(TransportError("reset"), problem("not-found", 404))
    simulated(client_of(line).destroy("h"))
    assert [request.method for request in line.requests] == ["DELETE", "DELETE"]


def test_an_instance_that_never_was_is_not_destroyed() -> None:
    """A wrong id is told at the first try."""
    with pytest.raises(RemoteProblem) as refused:
        simulated(client_of(in_turn(problem("not-found", 404))).destroy("h"))
    assert (refused.value.status, refused.value.kind) == (404, "not-found")


def test_a_token_is_not_made_twice() -> None:
    """Its secret would be lost with the answer; a refused connection is another matter."""
    new = NewToken(user="ann", scopes=["read"])
    with pytest.raises(ServiceUnreachable):
        simulated(client_of(in_turn(TransportError("reset"))).create_token(new))
    made = TokenInfo(id="1", user="ann", scopes=["read"], expires=1.0)
    line = in_turn(ConnectionFailed("refused"), answer(made, 201))
    assert simulated(client_of(line).create_token(new)) == made


TOKENS = [
    ({}, "no token"),
    ({"token_place": "nothing is set"}, "no token: nothing is set"),
    ({"token": "s3cret", "token_place": "BURSAR_TOKEN"}, "the token of BURSAR_TOKEN"),
    (
        {"token": "s3cret", "token_place": "x.token", "certificate": Path("me.pem")},
        "the token of x.token and the certificate me.pem",
    ),
]


@pytest.mark.parametrize(("access", "shown"), TOKENS)
def test_who_is_not_known_is_told_by_what(access: dict[str, Any], shown: str) -> None:
    """Where the token came from, and not the token."""
    line = in_turn(problem("unauthenticated", 401, detail="the token is not known"))
    client = AsyncServiceClient(Access(url="https://site.example.org", **access), transport=line)
    with pytest.raises(RemoteProblem) as refused:
        simulated(client.site())
    assert str(refused.value) == f"site.example.org: the token is not known ({shown})"
    assert refused.value.detail == "the token is not known"
    assert refused.value.exit_status == 2


@pytest.mark.parametrize(
    ("status", "exit_status"), [(400, 2), (404, 2), (422, 2), (402, 1), (500, 1)]
)
def test_a_problem_says_whose_fault_it_is(status: int, exit_status: int) -> None:
    """With the site, the place and the case in one line."""
    refusal = problem("bad-value", status, detail="expected a number", where="tasks[3].limit")
    with pytest.raises(RemoteProblem) as refused:
        simulated(client_of(in_turn(refusal)).site())
    assert str(refused.value) == "site.example.org: tasks[3].limit: expected a number"
    assert refused.value.exit_status == exit_status
    assert not refused.value.transient


def test_what_a_service_says_does_nothing_to_a_terminal() -> None:
    """Neither line ends nor escape sequences, and not a book."""
    refusal = problem("x", 400, detail="red \x1b[31m\nnext " + "x" * 10_000)
    with pytest.raises(RemoteProblem) as refused:
        simulated(client_of(in_turn(refusal)).site())
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize(
    "said",
    [
        ClientResponse(200, content=b"<html>"),
        ClientResponse(200, content=b'{"name": 1}'),
        ClientResponse(200, content=b'{"name": "\xff"}'),
        ClientResponse(200, content=b"[" * 100_000),
        ClientResponse(302, headers={"Location": "https://elsewhere.example.org"}),
    ],
)
def test_what_is_no_service_is_told_so(said: ClientResponse) -> None:
    """At once, and nothing is sent elsewhere."""
    line = in_turn(said)
    with pytest.raises(InvalidServiceResponse, match=r"^site\.example\.org: "):
        simulated(client_of(line).site())
    assert len(line.requests) == 1


def test_an_error_without_a_document_is_told_by_its_status() -> None:
    """That of a proxy, say."""
    with pytest.raises(RemoteProblem, match="answers 418"):
        simulated(client_of(in_turn(ClientResponse(418, content=b"<html>"))).site())


def test_the_token_is_sent_and_told_to_nobody() -> None:
    """It is in one header, and in no error."""
    line = in_turn(problem("unauthorised", 401, detail="no"))
    access = Access(url="https://site.example.org", token="s3cret")
    with pytest.raises(RemoteProblem) as refused:
        simulated(AsyncServiceClient(access, transport=line).site())
    assert line.requests[0].headers["Authorization"] == "Bearer s3cret"
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("handle", ["..", ".", ""])
def test_a_handle_that_leads_elsewhere_is_refused(handle: str) -> None:
    """Paths are made shorter on the way: it would be another route."""
    with pytest.raises(InputError, match="expected the name of something"):
        simulated(client_of(in_turn()).destroy(handle))


def test_odd_handles_and_names_stay_where_they_are() -> None:
    """Slashes and question marks are part of them."""
    line = in_turn(ClientResponse(204), answer(api.FileInfo(name="x", size=0), 200))
    client = client_of(line)

    async def ask() -> None:
        await client.destroy("a/b?c#d%2e")
        await client.upload("h", "dir/a b?.txt", b"")

    simulated(ask())
    site = "https://site.example.org/v1"
    assert [request.url for request in line.requests] == [
        f"{site}/instances/a%2Fb%3Fc%23d%252e",
        f"{site}/instances/h/files/dir/a%20b%3F.txt",
    ]


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../b", "", "a\0b"])
def test_a_file_name_that_leads_out_is_refused(name: str) -> None:
    """Before anything is sent."""
    with pytest.raises(InputError, match="relative path"):
        simulated(client_of(in_turn()).upload("h", name, b""))


def test_a_session_is_destroyed_at_its_end() -> None:
    """Also when the work in it fails; not when the service is away."""
    made = answer(api.InstanceInfo(id="h"), 201)

    async def work(line: Line, error: Exception) -> list[str]:
        with pytest.raises(type(error)):
            async with client_of(line, patience=0.0).session():
                raise error
        return [request.method for request in line.requests]

    line = in_turn(made, ClientResponse(204))
    assert simulated(work(line, KeyError("x"))) == ["POST", "DELETE"]
    made = answer(api.InstanceInfo(id="h"), 201)
    assert simulated(work(in_turn(made), SiteError("away"))) == ["POST"]
