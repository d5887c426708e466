"""The trade-off between makespan and allocation cost, and how it is asked for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bursar.model.plan import Plan, Purchase
from bursar.model.site import SiteFacts
from bursar.model.workflow import Workflow

if TYPE_CHECKING:
    from bursar.planning.bounds import Bounds
    from bursar.planning.links import Link


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """
    One purchase and what it gives: a point of the trade-off curve.

    Parameters
    ----------
    makespan
        Seconds; None when a runtime is unknown.
    cost
        Allocation cost, currency units; None when a price or runtime is unknown.
    currency
        Of the cost.
    purchases
        What is bought: for each site used, the processors its tasks need, from
        0 to its last task's finish.
    utilisation
        Share of the bought processor time that tasks fill; None when unknown.
    bound
        No plan with these processors is shorter, seconds; None when no runtime
        is known.
    tried
        Processors of each of the front's sites that the scheduler was given;
        it may have left some unused.
    """

    makespan: float | None
    cost: float | None
    currency: str
    purchases: tuple[Purchase, ...]
    utilisation: float | None
    bound: float | None
    tried: tuple[int, ...] = field(repr=False)

    @property
    def processors(self) -> int:
        """Processors bought, over all sites."""
        return sum(p.slot.processors for p in self.purchases)

    @property
    def processor_seconds(self) -> float:
        """Processor time bought; infinite when a runtime is unknown."""
        return sum(p.slot.processors * p.slot.duration for p in self.purchases)

    @property
    def gap(self) -> float | None:
        """How far above its bound the makespan is, at most, as a share; None when unknown."""
        if self.makespan is None or not self.bound:
            return None
        return max(0.0, self.makespan / self.bound - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """
    The options worth choosing from.

    Parameters
    ----------
    options
        Those that no other beats in makespan and cost, fastest first; one of
        each kind. Options of unknown cost are kept unless they would be beaten
        whatever the unknown prices are. When runtimes are unknown: the cheapest
        site, the two cheapest, and so on, with as many processors as the tasks
        can use.
    evaluated
        Every purchase that was tried, the front included, fastest first.
    bounds
        What no plan can beat.
    notes
        What is unknown and what follows from it, in plain words.
    workflow, sites, links
        What was asked; the sites cheapest first.
    algorithm
        The scheduler.
    overhead
        Seconds added to each task.
    """

    options: tuple[Option, ...]
    evaluated: tuple[Option, ...] = field(repr=False)
    bounds: "Bounds"
    notes: tuple[str, ...] = ()
    workflow: Workflow = field(repr=False)
    sites: tuple[SiteFacts, ...] = field(repr=False)
    links: "Mapping[tuple[str, str], Link] | None" = field(default=None, repr=False)
    algorithm: str = "heft"
    overhead: float = 0.0

    @property
    def currency(self) -> str:
        """Of every cost in it."""
        return self.sites[0].currency

    def plan(self, option: Option) -> Plan:
        """
        The option with the place of every task.

        The schedule is computed again, to the same result: keeping one for each
        option would hold every task as many times as there are options.
        """
        from bursar.planning.search import plan_option

        return plan_option(self, option)


def trade_off(
    workflow: Workflow,
    sites: Sequence[SiteFacts],
    *,
    algorithm: str = "heft",
    processors: Sequence[int] | None = None,
    currency: str | None = None,
    links: "Mapping[tuple[str, str], Link] | None" = None,
    overhead: float = 0.0,
) -> Front:
    """
    Makespan against allocation cost, by how many processors are bought and where.

    Each site offers its processors as one divisible slot from 0 on, without
    end. What is tried (see :mod:`bursar.planning.search`): each site alone, then
    the cheapest sites together and the fastest sites together, the last one
    joining in varying width.

    A task goes only where there are the processors and the memory it needs. Its
    requirements, an expression, are left to the broker; ``notes`` says so.

    Parameters
    ----------
    sites
        Where processors can be bought; names unique.
    algorithm
        ``"heft"``.
    processors
        Numbers of processors to try of the site that varies; None: all of them
        up to some dozens, and beyond that ever wider steps.
    currency
        Use only the sites that ask this currency; None: they all ask the same.
    links
        How data pass between sites; None: sites share their files.
    overhead
        Seconds added to each task for starting it and fetching its result. Not
        negative. A processor is held, and paid, for this time too.

    Raises
    ------
    InputError
        When there is no site, two have one name, a task fits on no site, no
        number of ``processors`` is enough, the sites ask different currencies
        and none is chosen, the algorithm is unknown, or the overhead is negative.
    """
    from bursar.planning.search import search

    return search(
        workflow,
        sites,
        algorithm=algorithm,
        processors=processors,
        currency=currency,
        links=links,
        overhead=overhead,
    )
