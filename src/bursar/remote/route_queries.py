"""Types of the query strings of the API's routes."""

from typing import Annotated

from msgspec import Meta

from bursar.remote.messages import Count, Name, RequestStruct

PAGE = 10_000
"""Results, states of tasks, or files on one page, at most."""

MOST_WAIT = 60.0
"""Seconds for which a request may ask to be held back."""

EpochSeconds = Annotated[float, Meta(ge=0, le=1e12)]
"""Seconds since the epoch."""


class TasksQuery(RequestStruct, frozen=True):
    """Select tasks: at most ``limit``, from number ``after`` on."""

    after: Count = 0
    limit: Annotated[int, Meta(ge=1, le=PAGE)] = 1000


class ResultsQuery(RequestStruct, frozen=True):
    """
    Select results.

    Parameters
    ----------
    after
        Cursor of the last result that the client has.
    limit
        Results of one page, at most.
    wait
        Seconds to wait for the first result.
    follow
        Whether to send a stream of lines that goes on as results arrive, in place of a page. The
        stream ends when every task has its result, and may end earlier; the page after the last
        line says whether results are missing.
    """

    after: Count = 0
    limit: Annotated[int, Meta(ge=1, le=PAGE)] = 1000
    wait: Annotated[float, Meta(ge=0, le=MOST_WAIT)] = 0.0
    follow: bool = False


class RunningOutputQuery(RequestStruct, frozen=True):
    """
    Ask for what a running task prints beyond what the client has.

    Parameters
    ----------
    serial
        The attempt of which the client has something; 0: none.
    stdout, stderr
        Bytes of that attempt that the client has; below 0: so many bytes before the end.
    wait
        Seconds to wait for more.
    """

    serial: Count = 0
    stdout: Annotated[int, Meta(ge=-(2**53), le=2**53)] = 0
    stderr: Annotated[int, Meta(ge=-(2**53), le=2**53)] = 0
    wait: Annotated[float, Meta(ge=0, le=MOST_WAIT)] = 0.0


class ThroughQuery(RequestStruct, frozen=True):
    """Select the results up to this cursor."""

    through: Count


class FilesQuery(RequestStruct, frozen=True):
    """Select files: at most ``limit``, by name, after one of them."""

    after: Annotated[str, Meta(max_length=4096)] = ""
    limit: Annotated[int, Meta(ge=1, le=PAGE)] = PAGE


class PutQuery(RequestStruct, frozen=True):
    """Say whether tasks may execute the file."""

    executable: bool = False


class PeriodQuery(RequestStruct, frozen=True):
    """A period from ``since`` to before ``until``, seconds since the epoch; None: until now."""

    since: EpochSeconds = 0.0
    until: EpochSeconds | None = None


class PricesAheadQuery(RequestStruct, frozen=True):
    """
    Select begins for which an owner says what it would ask.

    Parameters
    ----------
    user
        Customer who would buy; empty: nobody known.
    processors, seconds
        What would be bought.
    since
        First begin, seconds since the epoch; None: now. The others are the full hours after it.
    count
        Number of begins.
    """

    user: Annotated[str, Meta(max_length=200)] = ""
    processors: Annotated[int, Meta(ge=1, le=10**9)] = 1
    seconds: Annotated[float, Meta(ge=1e-6, le=1e12)] = 3600.0
    since: EpochSeconds | None = None
    count: Annotated[int, Meta(ge=1, le=168)] = 24


class HeardQuery(RequestStruct, frozen=True):
    """Select an auctioneer's messages about a deal, from the one after number ``after`` on."""

    deal: Name
    after: Count = 0


class UsageQuery(RequestStruct, frozen=True):
    """Select the signed records after number ``after`` of the caller's chain."""

    after: Count = 0


class Empty(RequestStruct, frozen=True):
    """Nothing, behind the question mark or in the body: the address says it all."""
