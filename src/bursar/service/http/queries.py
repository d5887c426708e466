"""Types of the query strings of the routes."""

from typing import Annotated

from msgspec import Meta

from bursar.remote.messages import Count, RequestStruct
from bursar.service.http_limits import MOST_WAIT

MOST_RESULTS = 10_000
"""Results, or states of tasks, of one page."""

MOST_FILES = 10_000
"""Files of one page."""

EpochSeconds = Annotated[float, Meta(ge=0, le=1e12)]
"""Seconds since the epoch."""


class TasksQuery(RequestStruct, frozen=True):
    """Select tasks: at most ``limit``, from number ``after`` on."""

    after: Count = 0
    limit: Annotated[int, Meta(ge=1, le=MOST_RESULTS)] = 1000


class ResultsQuery(RequestStruct, frozen=True):
    """
    Select results.

    Parameters
    ----------
    after
        Cursor of the last result that the client has.
    limit
        Results of one page.
    wait
        Seconds to wait for the first result.
    follow
        Whether to send a stream of lines that goes on as results arrive, in place of a page. The
        stream ends when every task has its result, and may end earlier; the page after the last
        line says whether results are missing.
    """

    after: Count = 0
    limit: Annotated[int, Meta(ge=1, le=MOST_RESULTS)] = 1000
    wait: Annotated[float, Meta(ge=0, le=MOST_WAIT)] = 0.0
    follow: bool = False


class ThroughQuery(RequestStruct, frozen=True):
    """Select the results up to this cursor."""

    through: Count


class FilesQuery(RequestStruct, frozen=True):
    """Select files: at most ``limit``, by name, after one of them."""

    after: Annotated[str, Meta(max_length=4096)] = ""
    limit: Annotated[int, Meta(ge=1, le=MOST_FILES)] = MOST_FILES


class PutQuery(RequestStruct, frozen=True):
    """Say whether tasks may execute the file."""

    executable: bool = False


class PeriodQuery(RequestStruct, frozen=True):
    """A period from ``since`` to before ``until``, seconds since the epoch; None: until now."""

    since: EpochSeconds = 0.0
    until: EpochSeconds | None = None


class Empty(RequestStruct, frozen=True):
    """Nothing, behind the question mark or in the body: the address says it all."""
