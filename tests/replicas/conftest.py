"""Servers and sites that the tests of this room share."""

from collections.abc import Iterator

import pytest
from tests.replicas.servers import Web, a_web


@pytest.fixture
def web() -> Iterator[Web]:
    """A web server without pages."""
    with a_web() as web:
        yield web


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's own are asked."""
    monkeypatch.setenv("NO_PROXY", "*")
