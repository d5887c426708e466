"""The client for programs without a loop, against a small service on a real port."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.remote.small_service import SmallService

from bursar.remote.async_client import AsyncServiceClient
from bursar.remote.client import ServiceClient, Session
from bursar.remote.http_transport import RemoteProblem
from bursar.remote.messages import TaskSpec


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Of a service in a thread of its own."""
    service = SmallService()
    yield service.url
    service.close()


def tasks(count: int) -> Iterator[TaskSpec]:
    """Some."""
    return (TaskSpec(command=("echo", str(number))) for number in range(count))


def test_tasks_go_and_results_come(url: str) -> None:
    """In the order of their cursors, once each."""
    with ServiceClient(url) as client, client.session(label="mine") as session:
        assert session.info().label == "mine"
        assert list(session.submit(tasks(2500))) == list(range(2500))
        results = list(session.results())
        assert [result.cursor for result in results] == list(range(1, 2501))
        assert results[-1].stdout == "2499\n"
    with ServiceClient(url) as client:
        assert client.instances() == []


def test_who_stops_reading_can_go_on_later(url: str) -> None:
    """The generator is closed; the cursor says where to go on."""
    with ServiceClient(url) as client, client.session() as session:
        session.submit(tasks(1000))
        results = session.results()
        first = next(results)
        results.close()
        rest = list(session.results(after=first.cursor))
        assert len(rest) == 999


def test_it_works_within_a_running_loop(url: str) -> None:
    """In a notebook, for one."""

    async def cell() -> int:
        with ServiceClient(url) as client, client.session() as session:
            session.submit(tasks(3))
            return len(list(session.results()))

    assert asyncio.run(cell()) == 3


def test_both_clients_have_the_same_methods() -> None:
    """Of the same names and parameters, in the same order."""
    import inspect

    from bursar.remote.async_client import AsyncSession

    for sync, other in ((ServiceClient, AsyncServiceClient), (Session, AsyncSession)):
        theirs = _methods(other)
        ours = _methods(sync)
        # Names and keys are made for the caller, results come one by one.
        missing = set(theirs) - set(ours) - {"new_key", "submit_lines", "batches"}
        assert not missing
        for name, method in ours.items():
            wanted = inspect.signature(theirs[name]).parameters
            assert list(inspect.signature(method).parameters) == list(wanted), name


def _methods(kind: type) -> dict[str, Any]:
    return {
        name: method
        for name, method in vars(kind).items()
        if callable(method) and not name.startswith("_")
    }


def test_errors_come_through(url: str) -> None:
    """As the same exceptions."""
    with ServiceClient(url) as client, pytest.raises(RemoteProblem, match="no such instance"):
        client.instance("nobody")


def test_a_closed_client_says_so_and_leaves_no_thread(url: str) -> None:
    """Closing it again changes nothing."""
    before = threading.active_count()
    client = ServiceClient(url)
    client.site()
    client.close()
    client.close()
    assert threading.active_count() == before
    with pytest.raises(RuntimeError, match="closed"):
        client.site()
