"""What matchmaking goes by: statuses of sites, copies of files, requirements and ranks."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

# A copy of a logical file.


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """
    Where one copy of a logical file is.

    Parameters
    ----------
    name
        Logical name: a relative path, as a file of a task has.
    site
        Site whose storage holds the copy; empty: no site's.
    url
        Of the copy: ``file:``, ``http:``, ``https:``, ``ssh:``, ``s3:``, or a path.
    size
        Bytes; None when unknown.
    checksum
        ``"sha256:<hex>"`` of the content; None when unknown.
    """

    name: str
    site: str
    url: str
    size: int | None = None
    checksum: str | None = None


# Statuses published by sites, and the readings that an index gives.

Fact = str | int | float | bool
"""A published value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStatus:
    """
    State of one machine of a site of kind ``"ssh"``.

    Parameters
    ----------
    processors, free
        Processors that may be used there, and those of them that no run holds.
    memory, free_memory
        Bytes; None when unknown.
    error
        Why it cannot be used, in one line; empty: it can.
    """

    host: str
    processors: int = 0
    free: int = 0
    memory: int | None = None
    free_memory: int | None = None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteStatus:
    """
    State of a site, as published by the site at a given time.

    Parameters
    ----------
    at
        When the site said so, seconds on the clock of who reads it.
    free_processors
        Processors that no job holds.
    running, waiting
        Jobs.
    traversal_time
        Estimated traversal time of its queue: seconds that a job of one processor that is
        submitted now would wait before it begins; None when unknown.
    free_memory
        Bytes; None when unknown.
    state
        ``"Production"`` while it takes jobs.
    attributes
        Further ones, by name.
    hosts
        State of each machine, where the site is a list of machines.
    """

    site: str
    at: float
    free_processors: int
    running: int = 0
    waiting: int = 0
    traversal_time: float | None = None
    free_memory: int | None = None
    state: str = "Production"
    attributes: Mapping[str, Fact] = field(default_factory=dict)
    hosts: tuple[HostStatus, ...] = ()


@dataclass(frozen=True, slots=True)
class StatusReading:
    """
    Status of a site in an index, with the age of the status.

    Parameters
    ----------
    age
        Seconds since then.
    """

    status: SiteStatus
    age: float


# A job's requirements and rank for the resource broker, and the weights of the rank's terms.

CHOICES = (
    "completion",
    "best",
    "stochastic",
    "softmax",
    "best-of-d",
    "edg-2001",
    "glite-mid",
    "glite-2012",
    "random",
)
"""Rules by which one of the sites that match is chosen, see
:mod:`bursar.broker.matchmaking.choice`; the first is ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """
    The significant attributes of a job: jobs that share them are matched once.

    Parameters
    ----------
    requirements
        ClassAd expression that a site must satisfy; None: any will do.
    rank
        ClassAd expression, greater is better; None: minus the estimated traversal time.
    site
        Name of the site where the job must run, without matchmaking; None: any.
    alpha
        Weight of the rank against that of the files, from 0 to 1 (Cavalieri et al. 2003,
        equation 1); None: the broker's.
    beta
        Weight of access to files against their transfer, from 0 to 1 (equation 3); None:
        the broker's.
    choice
        Name of the rule by which one of the matching sites is chosen; None: the broker's.
    attributes
        Further attributes of the job's ad, by name: ClassAd expressions as text.

    Raises
    ------
    ValueError
        When a weight is out of range.
    """

    requirements: str | None = None
    rank: str | None = None
    site: str | None = None
    alpha: float | None = None
    beta: float | None = None
    choice: str | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, weight in (("alpha", self.alpha), ("beta", self.beta)):
            if weight is not None and (math.isnan(weight) or not 0 <= weight <= 1):
                raise ValueError(f"{name} must be between 0 and 1, got {weight:g}")
        if self.choice is not None and self.choice not in CHOICES:
            raise ValueError(f'choice: expected one of {", ".join(CHOICES)}, got "{self.choice}"')


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWeights:
    """
    Weights of a rank (Cavalieri et al. 2003, equations 1 and 3).

    Parameters
    ----------
    alpha
        Weight of the rank expression against the files; from 0 to 1.
    beta
        Weight of access to files against the transfer of files; from 0 to 1.

    Raises
    ------
    ValueError
        When one is out of range.
    """

    alpha: float = 0.5
    beta: float = 0.5

    def __post_init__(self) -> None:
        Matching(alpha=self.alpha, beta=self.beta)  # says what is wrong


# Describes how the resource broker brings a run's jobs to sites.


@dataclass(frozen=True, slots=True, kw_only=True)
class Brokering:
    """
    Matchmaking settings of all jobs that state none of their own.

    Parameters
    ----------
    choice
        Name of the rule by which one of the matching sites is chosen.
    alpha, beta
        Weights of the rank, see :class:`bursar.model.matching.Matching`.
    catalogue
        File of the replica catalogue; None: there is none.
    refresh
        Seconds between two times that the information index asks a site. Positive.
    rank_by
        Whether ranks are made of what a ``"site"`` says when it is asked then, or of what the
        ``"index"`` knows.
    seed
        Seed of random choices.

    Raises
    ------
    ValueError
        When a value is out of range.
    """

    choice: str = CHOICES[0]
    alpha: float = 0.5
    beta: float = 0.5
    catalogue: str | None = None
    refresh: float = 5.0
    rank_by: Literal["site", "index"] = "site"
    seed: int = 0

    def __post_init__(self) -> None:
        Matching(choice=self.choice, alpha=self.alpha, beta=self.beta)  # says what is wrong
        if not 0 < self.refresh < math.inf:
            raise ValueError(f"refresh must be finite and positive, got {self.refresh}")
        if self.seed < 0:
            raise ValueError(f"seed must not be negative, got {self.seed}")
