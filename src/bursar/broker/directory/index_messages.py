"""
Messages between sites, indexes and their readers, and their JSON form.

No moment crosses the wire, only ages: clocks at its two ends need not agree.
"""

import math
from typing import TypeVar

import msgspec

from bursar.broker.directory.status_validation import LARGEST
from bursar.broker.matchmaking.broker_interfaces import IndexReader
from bursar.model.errors import InputError
from bursar.model.json_messages import decode_message
from bursar.model.status import Fact, SiteStatus

LARGEST_PUBLISH = 64 * 1024
"""Bytes of what a site publishes, or a reader asks."""

LARGEST_ANSWER = 16 * 1024 * 1024
"""Bytes of what an index answers: ten thousand sites take about a tenth of it."""

M = TypeVar("M", bound="IndexMessage")


class IndexMessage(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag=str.lower,
):
    """Base of all messages."""


class Publish(IndexMessage, frozen=True, kw_only=True):
    """
    A site reports its status.

    Parameters
    ----------
    age
        Seconds since the status held. Not negative.
    site, free_processors, running, waiting, traversal_time, free_memory, state, attributes
        See :class:`bursar.model.status.SiteStatus`.

    Raises
    ------
    ValueError
        When the age is out of range. What the other values say is judged where they are
        read: :func:`bursar.broker.directory.status_validation.validate_status`.
    """

    site: str
    age: float
    free_processors: int
    running: int = 0
    waiting: int = 0
    traversal_time: float | None = None
    free_memory: int | None = None
    state: str = "Production"
    attributes: dict[str, Fact] = {}

    def __post_init__(self) -> None:
        if not 0 <= self.age <= LARGEST:
            raise ValueError(f"age must be seconds, not negative, got {self.age:g}")


class Query(IndexMessage, frozen=True, kw_only=True):
    """
    A reader asks for the statuses of sites.

    Parameters
    ----------
    sites
        Names of the sites; empty: all.
    version
        Version that the reader has; where the index still has it, no statuses are sent.
    """

    sites: tuple[str, ...] = ()
    version: int | None = None


class Answer(IndexMessage, frozen=True, kw_only=True):
    """
    An index returns the statuses that it knows.

    Parameters
    ----------
    version
        Version of the index.
    known
        Statuses by site; None: unchanged since the reader's version.
    """

    version: int
    known: tuple[Publish, ...] | None = None


def publish_message(status: SiteStatus, now: float) -> Publish:
    """
    A status as it is sent.

    Parameters
    ----------
    now
        Seconds on the sender's clock, which the status is on, too.
    """
    return Publish(
        site=status.site,
        age=max(0.0, now - status.at),
        free_processors=status.free_processors,
        running=status.running,
        waiting=status.waiting,
        traversal_time=status.traversal_time,
        free_memory=status.free_memory,
        state=status.state,
        attributes=dict(status.attributes),
    )


def status_of(reading: Publish, now: float) -> SiteStatus:
    """
    Convert a received message to a status, unvalidated.

    Parameters
    ----------
    now
        Seconds on the receiver's clock. What the way takes is not counted.
    """
    return SiteStatus(
        site=reading.site,
        at=now - reading.age,
        free_processors=reading.free_processors,
        running=reading.running,
        waiting=reading.waiting,
        traversal_time=reading.traversal_time,
        free_memory=reading.free_memory,
        state=reading.state,
        attributes=reading.attributes,
    )


def answer_query(query: Query, index: IndexReader) -> Answer:
    """Answer a query; sites that the index does not know are left out."""
    version = index.version
    if query.version == version:
        return Answer(version=version)
    readings = index.read()
    sites = [site for site in query.sites if site in readings] if query.sites else list(readings)
    known = (readings[site] for site in sites)
    return Answer(
        version=version,
        known=tuple(publish_message(one.status, one.status.at + one.age) for one in known),
    )


def encode(message: IndexMessage) -> bytes:
    """
    The message as JSON; :func:`decode` reads it back.

    Raises
    ------
    InputError
        When it is a status with a number that JSON does not have.
    """
    for reading in _statuses(message):
        wait = reading.traversal_time
        if wait is not None and not math.isfinite(wait):
            raise InputError(f"expected a finite number, got {wait:g}", where="traversal_time")
        for name, value in reading.attributes.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise InputError(f"expected a finite number, got {value:g}", where=name)
    return msgspec.json.encode(message)


def decode(data: bytes, kind: type[M]) -> M:
    """
    The message of a kind in a JSON text.

    Raises
    ------
    InputError
        When it is none, or too long.
    """
    room = LARGEST_ANSWER if kind is Answer else LARGEST_PUBLISH
    return decode_message(data, lambda text: msgspec.json.decode(text, type=kind), room)


def _statuses(message: IndexMessage) -> tuple[Publish, ...]:
    if isinstance(message, Publish):
        return (message,)
    return (message.known or ()) if isinstance(message, Answer) else ()
