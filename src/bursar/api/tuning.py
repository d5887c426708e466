"""Tuning of the weights of the broker's rank for given sites and load, by simulation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bursar.api.matching import locate_replicas
from bursar.api.site_resolution import Sites, resolve_sites
from bursar.broker.policy_choice import PolicyRequest, choose_policy
from bursar.broker.status_feeds import IndexLevel
from bursar.model.campaign import Campaign
from bursar.model.errors import InputError
from bursar.model.matching import Brokering, RankWeights, Replica
from bursar.model.network import Topology
from bursar.model.site import BackgroundLoad, SiteFacts
from bursar.simulation.datagrid.grid_outcome import ConfidenceInterval
from bursar.simulation.datagrid.grid_simulation import simulate
from bursar.simulation.datagrid.scenario import (
    BrokerPolicy,
    DataGrid,
    GridJobClass,
    GridServices,
    poisson,
)
from bursar.simulation.datagrid.tuning import TunedWeights, WeightSearch
from bursar.simulation.simulated_grid import SimulatedGrid as Clusters

OnProgress = Callable[[int, int], None]
"""Function called with the number of simulations so far, and the most there will be."""

RUNTIME, SIZE, FILES = 600.0, 10**9, 10
"""Jobs where no campaign is given: seconds at speed 1, bytes of the one file that each job reads,
and number of such files, spread over the sites in turn."""
JOBS = 300
"""Jobs in a simulation; the first fifth is not counted."""
WARM_UP = 0.2
EVERY = 60.0
"""Seconds between two refreshes of the information index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTuning:
    """
    Result of a search for rank weights.

    Parameters
    ----------
    found
        The weights, with lifetimes and what was tried.
    choice
        The rule by which sites were chosen.
    gap
        Mean seconds between two submissions.
    jobs
        Number of jobs in each simulation.
    """

    found: TunedWeights
    choice: str
    gap: float
    jobs: int
    sites: tuple[str, ...]

    @property
    def weights(self) -> RankWeights:
        """The best weights found."""
        return self.found.best

    @property
    def is_better(self) -> bool:
        """Whether the best is shorter than the default beyond doubt."""
        return self.found.gain.low > 0

    def to_dict(self) -> dict[str, Any]:
        """Return the whole result as a JSON object."""
        found = self.found
        return {
            "alpha": found.best.alpha,
            "beta": found.best.beta,
            "choice": self.choice,
            "load_s": self.gap,
            "jobs": self.jobs,
            "sites": list(self.sites),
            "lifetime_s": _ends(found.best_lifetime),
            "default": {
                "alpha": found.default.alpha,
                "beta": found.default.beta,
                "lifetime_s": _ends(found.default_lifetime),
            },
            "gain_s": _ends(found.gain),
            "is_better": self.is_better,
            "tried": [
                {"alpha": w.alpha, "beta": w.beta, "mean_lifetime_s": mean, "simulations": count}
                for w, mean, count in found.tried
            ],
        }

    def write(self, path: Path | str) -> None:
        """
        Write the file of weights that the broker reads.

        Raises
        ------
        BursarError
            When the file cannot be written.
        """
        from bursar.formats.network_files import write_weights

        write_weights(
            Path(path),
            self.weights,
            {
                "by": "simulation",
                "choice": self.choice,
                "load_s": self.gap,
                "jobs": self.jobs,
                "sites": ", ".join(self.sites),
                "lifetime_s": round(self.found.best_lifetime.mean, 3),
                "default_lifetime_s": round(self.found.default_lifetime.mean, 3),
                "gain_s": round(self.found.gain.mean, 3),
                "gain_half_interval_s": round(self.found.gain.half, 3),
            },
        )


def tune_rank(
    sites: Sites,
    load: float,
    *,
    campaign: Campaign | None = None,
    topology: Topology | None = None,
    catalogue: str | Path | None = None,
    choice: str = "best",
    every: float = EVERY,
    jobs: int = JOBS,
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> RankTuning:
    """
    Find the alpha and beta of the shortest job lifetimes (Cavalieri et al., section 2.2).

    Parameters
    ----------
    sites
        A sites file or the sites. Those with a log of their own are simulated with it.
    load
        Mean seconds between two submissions.
    campaign
        Jobs are like its tasks: each of them is as likely. None: jobs of ten minutes that read
        a file of 1 GB, of which there is one copy.
    topology
        The network, with a node for each site; None: by the links of the sites.
    catalogue
        File of the replica catalogue with the copies of the files that the campaign's tasks read;
        copies at other sites do not count.
    choice
        Rule by which sites are chosen; those that do not go by the rank are refused.
    every
        Seconds between two refreshes of the information index.
    jobs
        Number of jobs in each simulation.
    seed
        Seed of all random numbers.
    on_progress
        Called with the progress of the search.

    Raises
    ------
    InputError
        When an argument is wrong, a runtime or the size of a file is unknown, or no job can finish.
    """
    facts = resolve_sites(sites)
    if len(facts) < 2:
        raise InputError("with a single site there is nothing to choose")
    if jobs < 10:
        raise InputError(f"jobs: at least 10 are needed to tell a mean, got {jobs}")
    if choice == "random":
        raise InputError('choice: "random" does not go by the rank')
    kinds, copies = _usual(facts) if campaign is None else _like(campaign, facts, choice, catalogue)
    grid = DataGrid(sites=facts, replicas=copies, topology=topology)
    queues = Clusters([site for site in facts if _has_queue(site)])
    # The age of the index is what the weights have to make up for.
    services = GridServices(levels=(IndexLevel(every=every),))

    def measure(weights: RankWeights, replication: int) -> float:
        outcome = simulate(
            grid,
            # Common random numbers: all weights meet the same jobs, so that differences come from
            # the weights and small ones show early.
            poisson(np.random.default_rng([seed, replication]), kinds, gap=load, jobs=jobs),
            policy=BrokerPolicy(choice=choice, weights=weights),
            services=services,
            clusters=queues.clusters(),
            seed=replication,
        )
        if not outcome.finished:
            reason, _ = outcome.reasons.most_common(1)[0]
            raise InputError(f"no job can finish: {reason}")
        # Without the first jobs, which find an empty grid.
        return outcome.mean_lifetime(WARM_UP)

    report = on_progress or (lambda done, total: None)
    found = WeightSearch(measure, report).run(RankWeights())
    return RankTuning(
        found=found,
        choice=choice,
        gap=load,
        jobs=jobs,
        sites=tuple(site.name for site in facts),
    )


def _has_queue(site: SiteFacts) -> bool:
    background = site.background or BackgroundLoad(policy="fcfs")
    return background.trace is not None or background.policy != "fcfs"


def _usual(sites: Sequence[SiteFacts]) -> tuple[tuple[GridJobClass, ...], tuple[Replica, ...]]:
    names = [f"file-{i}" for i in range(FILES)]
    kinds = tuple(GridJobClass(name=name, runtime=RUNTIME, data=(name,)) for name in names)
    holders = [sites[i % len(sites)].name for i in range(FILES)]
    copies = tuple(
        Replica(name=name, site=site, url=f"/{site}/{name}", size=SIZE)
        for name, site in zip(names, holders, strict=True)
    )
    return kinds, copies


def _like(
    campaign: Campaign, sites: Sequence[SiteFacts], choice: str, catalogue: str | Path | None
) -> tuple[tuple[GridJobClass, ...], tuple[Replica, ...]]:
    """Return kinds of job like a campaign's tasks, and the copies at the sites of their files."""
    wanted = PolicyRequest(brokering=Brokering(choice=choice), catalogue=catalogue)
    policy = choose_policy(campaign, sites, wanted).policy
    names = {site.name for site in sites}
    found = locate_replicas(policy.brokering, campaign).values()
    here = tuple(replica for replicas in found for replica in replicas if replica.site in names)
    return _kinds(campaign, here), here


def _kinds(campaign: Campaign, replicas: Sequence[Replica]) -> tuple[GridJobClass, ...]:
    known = {replica.name for replica in replicas}
    kinds = []
    for task in campaign.workflow.tasks:
        if task.runtime is None:
            raise InputError(
                "has no runtime to simulate",
                where=f"tasks.{task.id}",
                hint="state runtimes, or give one for all that state none",
            )
        for name in task.data:
            if name not in known:
                raise InputError(
                    f'reads "{name}", of which there is no copy at any of the sites',
                    where=f"tasks.{task.id}.data",
                )
        kinds.append(
            GridJobClass(
                name=task.id,
                runtime=task.runtime,
                processors=task.processors,
                memory=task.memory,
                data=task.data,
                matching=task.matching,
            )
        )
    if not kinds:
        raise InputError("the campaign has no task")
    return tuple(kinds)


def _ends(of: ConfidenceInterval) -> dict[str, float]:
    return {"mean": of.mean, "low": of.low, "high": of.high}
