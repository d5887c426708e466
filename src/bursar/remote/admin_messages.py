"""Messages of administration: tokens, workers and the overview of a service."""

from typing import Annotated, Literal

from msgspec import Meta

from bursar.remote.messages import Count, InstanceInfo, Name, RequestStruct, ResponseStruct, Seconds


class NewToken(RequestStruct, frozen=True):
    """A token to make; ``seconds`` None: 30 days."""

    user: Name
    scopes: Annotated[list[Literal["submit", "read", "sell", "admin"]], Meta(min_length=1)]
    seconds: Seconds | None = None
    label: Annotated[str, Meta(max_length=200)] = ""


class TokenInfo(ResponseStruct, frozen=True):
    """
    A token; ``id`` names it without being it.

    Parameters
    ----------
    token
        The secret itself: only in the answer that made it.
    """

    id: str
    user: str
    scopes: list[str]
    expires: float
    label: str = ""
    token: str = ""


class TokenList(ResponseStruct, frozen=True):
    """All tokens that are good."""

    tokens: list[TokenInfo]


class WorkerInfo(ResponseStruct, frozen=True):
    """A worker, for administrators."""

    name: str
    host: str
    pool: str
    processors: Count
    busy: Count
    connected: bool


class Overview(ResponseStruct, frozen=True):
    """
    All there is, for administrators: what ``bursar top`` shows.

    Parameters
    ----------
    submitted, started, finished, delivered
        Tasks since the service was started.
    journal_bytes
        On disk.
    problem
        Why new work is refused; empty: it is not.
    degraded
        What does not work though new work is taken: local accounts whose workers cannot be had.
    """

    at: float
    since: float
    instances: list[InstanceInfo]
    owners: list[str]
    workers: list[WorkerInfo]
    submitted: Count
    started: Count
    finished: Count
    delivered: Count
    journal_bytes: Count
    spent: int = 0
    currency: str = "SU"
    draining: bool = False
    problem: str = ""
    degraded: str = ""
