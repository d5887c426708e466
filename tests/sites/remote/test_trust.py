"""What a service that lies can do to its client, and what one that is trusted may send."""

import asyncio
import base64
import concurrent.futures
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.service.service_process import Served, served
from tests.sites.remote.lying_proxy import lying_proxy, malicious
from tests.sites.remote.real_service import SELLS, facts_of

import bursar
from bursar.model.site import SiteFacts, Trust
from bursar.worker.raised import RemoteError, RemoteTraceback

PATIENCE = 60.0


@pytest.fixture(scope="module")
def seller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A real service, which sells two processors."""
    with served(tmp_path_factory.mktemp("seller") / "state", SELLS) as service:
        yield service


def site(service: Served, *, port: int | None = None, trust: Trust = "data") -> SiteFacts:
    """The service, or the proxy on a port before it."""
    facts = facts_of(service)
    assert facts.remote is not None
    url = f"http://127.0.0.1:{port or service.port}"
    return replace(facts, remote=replace(facts.remote, url=url, trust=trust))


# Lies: the pickle in place of the value, after good data, and wherever text or bytes belong.


def in_value(said: dict[str, Any], pickle: str) -> dict[str, Any]:
    return said | {"value": pickle}


def after_value(said: dict[str, Any], pickle: str) -> dict[str, Any]:
    value = base64.b64decode(said.get("value", "")) + base64.b64decode(pickle)
    return said | {"value": base64.b64encode(value).decode()}


def in_all_fields(said: dict[str, Any], pickle: str) -> dict[str, Any]:
    return said | dict.fromkeys(("stdout", "stderr", "host", "reason", "value"), pickle)


LIES = [
    (lie, state)
    for lie in (in_value, after_value, in_all_fields)
    for state in ("succeeded", "failed", "timed-out")
]
CALLS = len(LIES)


# Ways by which calls are made and waited for.


def one_by_one(executor: bursar.Executor) -> list[BaseException | None]:
    return [executor.submit(pow, 2, n).exception(PATIENCE) for n in range(CALLS)]


def as_completed(executor: bursar.Executor) -> list[BaseException | None]:
    futures = [executor.submit(pow, 2, n) for n in range(CALLS)]
    found = concurrent.futures.as_completed(futures, PATIENCE)
    return [future.exception() for future in found]


def by_callbacks(executor: bursar.Executor) -> list[BaseException | None]:
    told: list[BaseException | None] = []
    futures = [executor.submit(pow, 2, n) for n in range(CALLS)]
    for future in futures:
        future.add_done_callback(lambda done: told.append(done.exception()))
    concurrent.futures.wait(futures, PATIENCE)
    return told


def mapped(executor: bursar.Executor) -> list[BaseException | None]:
    numbers = range(CALLS)
    ways = [executor.map(pow, numbers, numbers, timeout=PATIENCE, chunksize=n) for n in (1, 2)]
    return [raised_by(lambda found=found: list(found)) for found in ways]  # type: ignore[misc]


def in_asyncio(executor: bursar.Executor) -> list[BaseException | None]:
    async def main() -> list[Any]:
        loop = asyncio.get_running_loop()
        calls = [loop.run_in_executor(executor, pow, 2, n) for n in range(CALLS)]
        async with asyncio.timeout(PATIENCE):
            return await asyncio.gather(*calls, return_exceptions=True)

    return asyncio.run(main())


def raised_by(call: Callable[[], object]) -> BaseException | None:
    try:
        call()
    except BaseException as error:
        return error
    return None


WAYS = (one_by_one, as_completed, by_callbacks, mapped, in_asyncio)


def test_no_code_of_a_lying_service_runs(tmp_path: Path, seller: Served) -> None:
    """However calls are waited for, each fails in words and nothing is unpickled."""
    mark = tmp_path / "mark"
    pickle = malicious(mark)

    def lie(said: dict[str, Any]) -> dict[str, Any]:
        change, state = LIES[int(said["label"].partition(".")[0]) % CALLS]
        return change(said, pickle) | {"state": state}

    found = {}
    with lying_proxy(seller.port, lie) as proxy:
        there = site(seller, port=proxy.port)
        with bursar.Executor(sites=there, folder=tmp_path / "calls") as executor:
            for way in WAYS:
                found[way.__name__] = way(executor)
    assert not mark.exists()
    for name, errors in found.items():
        for error in errors:
            assert isinstance(error, bursar.TaskFailed), name
            assert 'trust = "pickle"' in str(error), name
    assert [len(errors) for errors in found.values()] == [CALLS, CALLS, CALLS, 2, CALLS]
    lied = {int(label.partition(".")[0]) % CALLS for label in proxy.lied}
    assert lied == set(range(CALLS))


@pytest.mark.ci
def test_that_attack_works_on_whoever_trusts_the_site(tmp_path: Path, seller: Served) -> None:
    """So the test above can fail."""
    mark = tmp_path / "mark"
    pickle = malicious(mark)
    with lying_proxy(seller.port, lambda said: in_value(said, pickle)) as proxy:
        there = site(seller, port=proxy.port, trust="pickle")
        with bursar.Executor(sites=there) as executor:
            executor.submit(pow, 2, 3).exception(PATIENCE)
    assert mark.exists()


@pytest.mark.ci
def test_a_described_exception_cannot_end_the_client(tmp_path: Path, seller: Served) -> None:
    """Classes are looked up in one list, which has none that ends a program."""
    from bursar.worker.call_results import encode_plain

    names = ("SystemExit", "KeyboardInterrupt", "StopIteration", "os.system", "TaskFailed")

    def lie(said: dict[str, Any]) -> dict[str, Any]:
        name = names[int(said["label"].partition(".")[0])]
        form = ("raised", name, ["echo"], f"{name}: said", "trace", ["a note"])
        value = base64.b64encode(encode_plain(form)).decode()
        return said | {"state": "failed", "value": value}

    with lying_proxy(seller.port, lie) as proxy:
        there = site(seller, port=proxy.port)
        with bursar.Executor(sites=there) as executor:
            errors = [executor.submit(pow, 2, 3).exception(PATIENCE) for _ in names]
    assert {type(error) for error in errors} == {RemoteError}
    assert [str(error) for error in errors] == [f"{name}: said" for name in names]


@dataclass(frozen=True)
class Point:
    """Of a class that only its own module knows."""

    x: int


class OwnError(Exception):
    """Of the caller's."""


def fail_by(error: Exception) -> None:
    """Raises it."""
    raise error


DATA = {
    "number": 1 << 200,
    "pair": (1.5, None),
    "names": {"a", "b"},
    b"bytes": [True, -1, "ü"],
}


@pytest.mark.ci
def test_data_comes_back_as_it_was(seller: Served) -> None:
    """Values, exceptions of the language, and descriptions of others."""
    import numpy as np

    with bursar.Executor(sites=site(seller)) as executor:
        assert executor.submit(dict, DATA).result(PATIENCE) == DATA
        array = executor.submit(np.arange, 3.0).result(PATIENCE)
        assert (array.dtype, array.tolist()) == (np.dtype(float), [0.0, 1.0, 2.0])
        assert list(executor.map(divmod, (7, 8), (3, 3), chunksize=2)) == [(2, 1), (2, 2)]

        error = executor.submit(open, "/nowhere").exception(PATIENCE)
        assert isinstance(error, FileNotFoundError)
        assert (error.errno, error.filename) == (2, "/nowhere")
        assert isinstance(error.__cause__, RemoteTraceback)

        own = executor.submit(fail_by, OwnError("of mine")).exception(PATIENCE)
        assert type(own) is RemoteError
        assert str(own).endswith("OwnError: of mine")
        assert 'trust = "pickle"' in "".join(own.__notes__)
        assert "fail_by" in str(own.__cause__)

        refused = executor.submit(Point, 3).exception(PATIENCE)
        assert isinstance(refused, bursar.TaskFailed)
        assert 'site "there"' in str(refused)
        assert "Point" in str(refused)
        assert 'trust = "pickle"' in str(refused)


def test_a_trusted_site_sends_values_of_any_class(seller: Served) -> None:
    """What the classes are, the sites file has said that they may be loaded."""
    with bursar.Executor(sites=site(seller, trust="pickle")) as executor:
        assert executor.submit(Point, 3).result(PATIENCE) == Point(3)
        own = executor.submit(fail_by, OwnError("of mine")).exception(PATIENCE)
        assert type(own) is OwnError
        assert own.args == ("of mine",)


def test_each_site_is_trusted_for_itself(seller: Served, tmp_path: Path) -> None:
    """One executor over this machine, whose workers send pickles, and over a service."""
    here = SiteFacts(name="here", processors=1, unit_price=0.0)
    found: set[type] = set()
    give_up = time.monotonic() + PATIENCE
    with bursar.Executor(1, sites=(here, site(seller))) as executor:
        while found < {Point, bursar.TaskFailed} and time.monotonic() < give_up:
            futures = [executor.submit(slow_point, n) for n in range(4)]
            found |= {type(one.exception(PATIENCE) or one.result()) for one in futures}
    assert found == {Point, bursar.TaskFailed}


def slow_point(number: int) -> Point:
    """Lasts long enough for both sites to take part."""
    time.sleep(0.05)
    return Point(number)


def test_a_service_runs_no_function_of_its_users(seller: Served) -> None:
    """A call is loaded in a process of its own, below the worker, not in the service's."""
    with bursar.Executor(sites=site(seller)) as executor:
        mine, parent = executor.submit(lambda: (os.getpid(), os.getppid())).result(PATIENCE)
    assert seller.process is not None
    assert seller.process.pid not in (mine, parent)
