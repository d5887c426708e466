"""Matching and ranking of sites for the jobs of a campaign, before anything starts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bursar.api.planning import resolve_campaign
from bursar.api.site_resolution import Sites, resolve_sites
from bursar.broker.information_index import InformationIndex
from bursar.broker.matchmaking.broker import ResourceBroker
from bursar.broker.matchmaking.broker_interfaces import LinkedFileTimes, broker_job
from bursar.broker.matchmaking.explaining import MatchExplanation
from bursar.model.campaign import Campaign
from bursar.model.errors import InputError, SiteError, spelling_hint
from bursar.model.matching import Brokering, RankWeights, Replica, SiteStatus
from bursar.model.site import SiteFacts
from bursar.model.task import Task

OUT_OF_REACH = 3
"""Exit status where some job has no site, as where no plan meets a goal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskKindMatches:
    """
    Tasks with equal requirements, and how well each site suits these tasks.

    Parameters
    ----------
    tasks
        Tasks of the kind, at least one.
    explanation
        Match of the sites with any of the tasks.
    """

    tasks: tuple[Task, ...]
    explanation: MatchExplanation

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON object; the keys are in the documentation."""
        first = self.tasks[0]
        return {
            "tasks": [task.id for task in self.tasks],
            "processors": first.processors,
            "memory": first.memory,
            "runtime_s": first.runtime,
            "data": list(first.data),
            **self.explanation.to_dict(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Matches:
    """
    Matches of the sites with all kinds of task of a campaign.

    Parameters
    ----------
    kinds
        Kinds of task, in the order of their first tasks.
    """

    campaign: str
    kinds: tuple[TaskKindMatches, ...]

    @property
    def feasible(self) -> bool:
        """Whether each task has a site."""
        return all(kind.explanation.refusal is None for kind in self.kinds)

    @property
    def exit_status(self) -> int:
        """Exit status of the command."""
        return 0 if self.feasible else OUT_OF_REACH

    def to_dict(self) -> dict[str, Any]:
        """Return what ``bursar match --json`` prints; the keys are in the documentation."""
        return {
            "campaign": self.campaign,
            "feasible": self.feasible,
            "kinds": [kind.to_dict() for kind in self.kinds],
        }

    def print(self) -> None:
        """Print a table of sites for each kind of task, and what rules out the other sites."""
        from bursar.report.tables import print_matches

        print_matches(self.to_dict())


def match(
    campaign: Campaign | str | Path,
    sites: Sites = None,
    *,
    broker: Brokering | None = None,
    catalogue: str | Path | None = None,
    task: str | None = None,
) -> Matches:
    """
    Match the tasks of a campaign with the present state of sites, without starting anything.

    Parameters
    ----------
    campaign
        A campaign, or the path of a file that holds one.
    sites
        A sites file or the sites; None: this machine.
    broker
        Settings for tasks without their own; None: the defaults.
    catalogue
        File of the replica catalogue; None: the broker's, or else no replica is known and
        logical files take no time.
    task
        Id of the only task to look at; None: all.

    Raises
    ------
    InputError
        When a file or an expression is wrong, or there is no such task.
    """
    campaign = resolve_campaign(campaign)
    facts = resolve_sites(sites)
    settings = broker or Brokering()
    if catalogue is not None:
        settings = replace(settings, catalogue=str(catalogue))
    copies = locate_replicas(settings, campaign)
    resource_broker = broker_now(facts, settings, copies)
    kinds = tuple(
        TaskKindMatches(tasks=tuple(tasks), explanation=_explained(resource_broker, tasks[0]))
        for tasks in group_alike_tasks(_asked_for(campaign, task))
    )
    return Matches(campaign=campaign.name, kinds=kinds)


def locate_replicas(
    brokering: Brokering | None, campaign: Campaign
) -> Mapping[str, Sequence[Replica]]:
    """
    Return the replicas of all logical files that a campaign's tasks read, by name.

    Raises
    ------
    InputError
        When the catalogue cannot be read.
    """
    if brokering is None or brokering.catalogue is None:
        return {}
    names = {name for task in campaign.workflow.tasks for name in task.data}
    if not names:
        return {}
    from bursar.replicas.catalogue import Catalogue

    # One question for all names; a catalogue that is only read must be there.
    with Catalogue(brokering.catalogue, make=False) as catalogue:
        return catalogue.locate_all(names)


def broker_now(
    sites: Sequence[SiteFacts], settings: Brokering, copies: Mapping[str, Sequence[Replica]]
) -> ResourceBroker:
    """Return a resource broker that knows the sites and replicas before anything starts."""
    files = (
        LinkedFileTimes(sites, lambda name: copies.get(name, ())) if settings.catalogue else None
    )
    return ResourceBroker(
        sites,
        index=index_now(sites),
        files=files,
        weights=RankWeights(alpha=settings.alpha, beta=settings.beta),
        choice=settings.choice,
        rng=np.random.default_rng(settings.seed),
        # A clock that stands still: no status expires while it is looked at.
        clock=_no_time_passes,
    )


def index_now(sites: Sequence[SiteFacts]) -> InformationIndex:
    """Return an information index with the status of all sites before anything starts."""
    index = InformationIndex(clock=_no_time_passes)
    for status in statuses_now(sites).values():
        index.publish(status)
    return index


def statuses_now(sites: Sequence[SiteFacts]) -> Mapping[str, SiteStatus]:
    """
    Return the status of sites at time 0, which is now: this machine's own report, a simulated
    cluster's by its log, and by its slots where a site only advertises them.

    Raises
    ------
    InputError
        When a log cannot be read.
    SiteError
        When one that can be asked does not answer.
    """
    simulated = [site for site in sites if site.kind == "simulated"]
    found = _of_clusters(simulated) if simulated else {}
    if any((site.batch or site.remote) is not None for site in sites):
        from bursar.api.queues import statuses

        for name, said in statuses(sites).items():
            if isinstance(said, SiteError):
                raise said
            # On the clock of this broker, which stands at 0.
            found[name] = replace(said, at=0.0)
    for site in sites:
        if site.kind == "local":
            from bursar.sites.local import LocalSite

            found[site.name] = LocalSite(site, _no_time_passes).status()
        elif site.name not in found:
            found[site.name] = _of_slots(site)
    return found


def _of_clusters(sites: Sequence[SiteFacts]) -> dict[str, SiteStatus]:
    from bursar.simulation.simulated_grid import SimulatedGrid

    return {
        name: SiteStatus(
            site=name,
            at=0.0,
            free_processors=cluster.machine.free,
            running=len(cluster.machine.running),
            waiting=len(cluster.machine.waiting),
            traversal_time=cluster.traversal_time(),
        )
        for name, cluster in SimulatedGrid(sites).clusters().items()
    }


def _of_slots(site: SiteFacts) -> SiteStatus:
    """Return the status of a site with slots only: a job waits until the first one begins."""
    starts = [max(0.0, slot.start) for slot in site.offers]
    free = sum(slot.processors for slot in site.offers if slot.start <= 0)
    return SiteStatus(
        site=site.name,
        at=0.0,
        free_processors=min(free, site.processors),
        traversal_time=min(starts, default=None),
    )


def _explained(broker: ResourceBroker, task: Task) -> MatchExplanation:
    try:
        # Any number will do: nothing is sent, and jobs are told apart by nothing else.
        return broker.explain(broker_job(0, task))
    except InputError as error:
        raise error.within(f'task "{task.id}"') from None


def _asked_for(campaign: Campaign, task: str | None) -> Sequence[Task]:
    tasks = campaign.workflow.tasks
    if task is None:
        return tasks
    found = [one for one in tasks if one.id == task]
    if not found:
        ids = [one.id for one in tasks]
        raise InputError(f'there is no task "{task}"', where="task", hint=spelling_hint(task, ids))
    return found


def group_alike_tasks(tasks: Sequence[Task]) -> list[list[Task]]:
    """Group tasks with equal requirements, in the order of the first task of each group."""
    groups: dict[tuple[object, ...], list[Task]] = {}
    for task in tasks:
        asked = task.matching
        key = (
            asked.requirements,
            asked.rank,
            asked.site,
            asked.alpha,
            asked.beta,
            asked.choice,
            tuple(sorted(asked.attributes.items())),
            task.processors,
            task.memory,
            task.runtime,
            task.data,
        )
        groups.setdefault(key, []).append(task)
    return list(groups.values())


def _no_time_passes() -> float:
    return 0.0
