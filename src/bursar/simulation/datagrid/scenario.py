"""What a simulation of the data grid is given: sites, files, services, faults and jobs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bursar.broker.status_feeds import IndexLevel
from bursar.model.errors import InputError, spelling_hint
from bursar.model.matching import CHOICES, Matching, RankWeights, Replica
from bursar.model.network import Topology
from bursar.model.site import SiteFacts

# What a simulation of the data grid is given: sites, files, services, and what goes wrong.


@dataclass(frozen=True, slots=True, kw_only=True)
class DataGrid:
    """
    Sites, the copies of files there, and the network between the sites.

    Parameters
    ----------
    sites
        Each is a computing element (processors, speed, the policy of its background) with
        a storage element (read rate, size limit).
    stores
        Storages without a computing element, by name; they have room for all that is there.
    replicas
        Copies there are at the begin; sizes are what the catalogue says.
    topology
        The network; None: by the links of the sites, of which each has its own capacity.
    nodes
        Where in the topology a site is, by its name; the node of that name if not here.

    Raises
    ------
    InputError
        When two sites have one name, a copy is at a site that is not there, a size is
        unknown or differs between copies, or a site has no place in the topology.
    """

    sites: tuple[SiteFacts, ...]
    stores: tuple[str, ...] = ()
    replicas: tuple[Replica, ...] = ()
    topology: Topology | None = None
    nodes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.sites:
            raise InputError("a grid needs at least one site")
        names = [*(site.name for site in self.sites), *self.stores]
        if len(set(names)) < len(names):
            twice = next(name for i, name in enumerate(names) if name in names[:i])
            raise InputError(f'two sites are called "{twice}"')
        sizes: dict[str, int] = {}
        for copy in self.replicas:
            if copy.site not in names:
                raise InputError(
                    f'a copy of "{copy.name}" is at the unknown site "{copy.site}"',
                    hint=spelling_hint(copy.site, names),
                )
            if copy.size is None:
                raise InputError(f'the size of "{copy.name}" is unknown, and is needed to simulate')
            if sizes.setdefault(copy.name, copy.size) != copy.size:
                raise InputError(f'copies of "{copy.name}" differ in size')
        if self.topology is not None:
            for name in names:
                if self.node(name) not in self.topology.nodes:
                    raise InputError(
                        f'the topology has no node "{self.node(name)}" for the site "{name}"',
                        hint=spelling_hint(self.node(name), self.topology.nodes),
                    )

    def node(self, site: str) -> str:
        """Where in the topology a site is."""
        return self.nodes.get(site, site)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPolicy:
    """
    How the broker ranks and chooses.

    Parameters
    ----------
    choice
        Name of a choice rule (:data:`bursar.model.matching.CHOICES`).
    weights
        Weights of equations 1 and 3.
    direct
        Whether the broker asks the candidates themselves in its second phase, rather than
        the index.
    as_published
        Whether the rule ``stochastic`` takes ranks as sites publish them, as the paper's broker
        does; otherwise its ranks count the broker's own jobs on their way.

    Raises
    ------
    InputError
        When there is no such rule.
    """

    choice: str = "completion"
    weights: RankWeights = field(default_factory=RankWeights)
    direct: bool = False
    as_published: bool = False

    def __post_init__(self) -> None:
        if self.choice not in CHOICES:
            raise InputError(
                f'unknown choice "{self.choice}", expected one of {", ".join(CHOICES)}',
                hint=spelling_hint(self.choice, CHOICES),
            )


CURRENT = BrokerPolicy(choice="best", weights=RankWeights(alpha=1.0, beta=0.0))
"""Policy of the paper's day: the best site by estimated traversal time alone (section 2.1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GridServices:
    """
    The services between a user and a site.

    Parameters
    ----------
    levels
        Levels of the information index, from the sites up to where the broker reads: how often
        each asks the one below, and how long that takes.
    expiry
        Seconds without an answer after which a site is dropped from the index.
    overhead
        Seconds that the job submission service takes to hand a job to its site.
    channels
        Jobs that it hands over at a time; None: as many as there are.
    stagings
        Jobs whose files it brings at a time; None: as many as there are.
    keeps
        Whether files that were brought stay as copies, while there is room, for other
        jobs; otherwise each job brings its own, and they go when it ends.
    retries
        How often a job is tried again after a failure.
    pause
        Seconds before it is.

    Raises
    ------
    InputError
        When a value is out of range.
    """

    levels: tuple[IndexLevel, ...] = (IndexLevel(every=60.0),)
    expiry: float = math.inf
    overhead: float = 0.0
    channels: int | None = None
    stagings: int | None = None
    keeps: bool = False
    retries: int = 3
    pause: float = 60.0

    def __post_init__(self) -> None:
        if not 0 < self.pause < math.inf:
            raise InputError(f"pause must be positive, got {self.pause:g}")
        for name in ("channels", "stagings"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise InputError(f"{name} must be at least 1, got {count}")
        if not (0 <= self.overhead < math.inf):
            raise InputError(f"overhead must be finite and not negative, got {self.overhead:g}")
        if self.retries < 0:
            raise InputError(f"retries must not be negative, got {self.retries}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteOutage:
    """
    A site that is gone for a while: its jobs are lost, and nothing comes from its storage.

    Parameters
    ----------
    begin, end
        Seconds; infinite when it does not come back.
    """

    site: str
    begin: float
    end: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class GridFaults:
    """
    Describes the faults of a simulation.

    Parameters
    ----------
    outages
        Sites that go.
    unreachable
        Copies, as (logical name, site), that cannot be read.
    lies
        Bytes that a copy really has, where its size in the catalogue is wrong, by (logical
        name, site). It is found out once the copy has been brought, and the copy forgotten.
    mute
        Sites that run jobs but publish nothing.
    """

    outages: tuple[SiteOutage, ...] = ()
    unreachable: frozenset[tuple[str, str]] = frozenset()
    lies: Mapping[tuple[str, str], int] = field(default_factory=dict)
    mute: frozenset[str] = frozenset()


# Jobs that users submit: kinds, and the times at which one comes after another.

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

RuntimeSpread = Literal["fixed", "exponential"]
EstimateRule = Literal["exact", "mean", "nothing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GridJobClass:
    """
    Jobs that are alike.

    Parameters
    ----------
    name
        For people.
    runtime
        Mean seconds at speed 1; where speeds are MIPS, millions of instructions.
    spread
        Whether all take that (``"fixed"``) or an exponential time of that mean.
    told
        Estimate that broker and sites are told: the exact time, the mean, or nothing.
    memory
        Bytes it needs; None when unknown.
    data
        Logical names of the files it reads.
    matching
        Requirements, rank and weights for the broker.

    Raises
    ------
    InputError
        When a value is out of range.
    """

    name: str = "job"
    runtime: float
    spread: RuntimeSpread = "fixed"
    told: EstimateRule = "exact"
    processors: int = 1
    memory: int | None = None
    data: tuple[str, ...] = ()
    matching: Matching = field(default_factory=Matching)

    def __post_init__(self) -> None:
        if not (0 <= self.runtime < math.inf):
            raise InputError(f"runtime must be finite and not negative, got {self.runtime:g}")
        if self.processors < 1:
            raise InputError(f"processors must be at least 1, got {self.processors}")

    def estimate(self, work: float) -> float | None:
        """Return the estimate that is stated for a job of so many seconds at speed 1."""
        if self.told == "nothing":
            return None
        return work if self.told == "exact" else self.runtime


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GridWorkload:
    """
    Submissions, by time.

    Parameters
    ----------
    kinds
        Classes of jobs.
    at
        When each is submitted, seconds. Ascending, not negative.
    kind
        Number of its kind.
    work
        Seconds at speed 1 that it takes.

    Raises
    ------
    InputError
        When the arrays differ in length, times go back, or a kind is not there.
    """

    kinds: tuple[GridJobClass, ...]
    at: FloatArray
    kind: IntArray
    work: FloatArray

    def __post_init__(self) -> None:
        if not len(self.at) == len(self.kind) == len(self.work):
            raise InputError("times, kinds and work of the submissions differ in number")
        if not len(self.at):
            raise InputError("a load needs at least one submission")
        if self.at[0] < 0 or (np.diff(self.at) < 0).any() or not np.isfinite(self.at).all():
            raise InputError("submissions must be in order of time, from 0 on")
        if self.kind.min() < 0 or self.kind.max() >= len(self.kinds):
            raise InputError(f"there are {len(self.kinds)} kinds of job, and others are submitted")
        if not (np.isfinite(self.work).all() and self.work.min() >= 0):
            raise InputError("the work of a job must be finite and not negative")

    def __len__(self) -> int:
        return len(self.at)


def poisson(
    rng: np.random.Generator,
    kinds: Sequence[GridJobClass],
    *,
    gap: float,
    jobs: int,
    shares: Sequence[float] | None = None,
) -> GridWorkload:
    """
    User interfaces whose submissions come at exponential intervals (section 2.3).

    Several of them together are one of their summed rate.

    Parameters
    ----------
    gap
        Mean seconds between two submissions. Positive.
    jobs
        How many. Positive.
    shares
        Shares of the kinds, in any unit; None: equal shares.

    Raises
    ------
    InputError
        When an argument is out of range.
    """
    if not (0 < gap < math.inf):
        raise InputError(f"the mean time between submissions must be positive, got {gap:g}")
    if jobs < 1:
        raise InputError(f"at least one job is needed, got {jobs}")
    weights = np.ones(len(kinds)) if shares is None else np.asarray(shares, dtype=np.float64)
    if len(weights) != len(kinds) or not weights.sum() > 0 or (weights < 0).any():
        raise InputError("each kind of job needs a share, and not all of them 0")
    # Drawn in this order, equal seeds give the same submissions at any gap, closer or wider.
    at = np.cumsum(rng.exponential(1.0, jobs)) * gap
    kind = rng.choice(len(kinds), size=jobs, p=weights / weights.sum()).astype(np.int64)
    factor = rng.exponential(1.0, jobs)
    fixed = np.array([k.spread == "fixed" for k in kinds])[kind]
    mean = np.array([k.runtime for k in kinds])[kind]
    return GridWorkload(
        kinds=tuple(kinds), at=at, kind=kind, work=mean * np.where(fixed, 1.0, factor)
    )
