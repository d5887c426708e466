"""
Describes a simulated customer's plan for one instance, with a state that outlives crashes.
"""

import random
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from bursar.remote import messages as api
from bursar_devtools.faults.fault_plan import FaultPlan
from bursar_devtools.faults.simulated_task import SimulatedTask

NegotiationWay = Literal["posted", "bargaining", "tender", "auction"]
"""Trading procedure by which a customer comes to an agreement."""


@dataclass(slots=True, kw_only=True)
class ClientCampaign:
    """
    Holds the plan for one instance and the user's progress.

    Parameters
    ----------
    user, name
        Name of the user, and a name of the campaign that is unique in the simulation.
    pieces
        Tasks by the idempotency key of their submission.
    pauses
        Seconds before each submission, by its key.
    buys
        Processors and seconds of the agreement under which the instance runs; None for shared
        processors.
    at_once
        How many of its tasks may run at a time; None: any number.
    way, willing
        Trading procedure, and the highest share of the posted price that is offered.
    withdraws_after
        Seconds after which the agreement is cancelled early; None to keep it.
    watches
        Whether the user also follows the instance's events.
    streams
        Whether results come as one stream rather than page by page.
    forgets
        Whether the user acknowledges results, so that the service may delete them.
    cancels_after
        Seconds after which tasks are cancelled; None to cancel none.
    cancels
        Names of the tasks to cancel; None for all.
    destroys_after
        Seconds after which the instance is destroyed, complete or not; None for never.

    Attributes
    ----------
    agreement, handle
        Identifiers of agreement and instance; empty until they are known.
    numbers
        Task numbers of each acknowledged submission, by its key.
    results
        Results received, by task number.
    after
        Cursor of the last result received.
    forgotten
        Cursor up to which an acknowledgement was attempted.
    seen
        Number of results according to the last event.
    withdrawing
        Whether the early end of the agreement was requested.
    given_up
        Names of tasks whose cancellation was requested; ``all_given_up`` stands for every task.
    cancelled, destroying, destroyed
        Whether the cancellation was acknowledged, the destruction requested, and acknowledged.
    """

    user: str
    name: str
    pieces: dict[str, list[SimulatedTask]]
    pauses: dict[str, float]
    buys: tuple[int, float] | None = None
    at_once: int | None = None
    way: NegotiationWay = "posted"
    willing: float = 1.0
    withdraws_after: float | None = None
    watches: bool = False
    streams: bool = True
    forgets: bool = False
    cancels_after: float | None = None
    cancels: frozenset[str] | None = None
    destroys_after: float | None = None
    agreement: str = ""
    handle: str = ""
    numbers: dict[str, range] = field(default_factory=dict)
    results: dict[int, api.Result] = field(default_factory=dict)
    after: int = 0
    forgotten: int = 0
    seen: int = 0
    withdrawing: bool = False
    given_up: set[str] = field(default_factory=set)
    all_given_up: bool = False
    cancelled: bool = False
    destroying: bool = False
    destroyed: bool = False

    def piece(self, number: int) -> SimulatedTask | None:
        """Return the task with a number; None while the number's submission is not acknowledged."""
        for key, numbers in self.numbers.items():
            if number in numbers:
                return self.pieces[key][number - numbers.start]
        return None

    def number_of(self, name: str) -> int:
        """Return the number of a task in the instance: submissions are sent in order, each once."""
        return next(
            number
            for number, piece in enumerate(p for pieces in self.pieces.values() for p in pieces)
            if piece.name == name
        )

    def may_be_cancelled(self, piece: SimulatedTask) -> bool:
        """Whether the user has requested the cancellation of a task."""
        return self.all_given_up or piece.name in self.given_up

    @property
    def is_complete(self) -> bool:
        """Whether every submission was acknowledged and every task has a result."""
        return len(self.numbers) == len(self.pieces) and all(
            number in self.results for numbers in self.numbers.values() for number in numbers
        )


def draw_campaign(
    user: str, number: int, plan: FaultPlan, chance: random.Random, edges: random.Random
) -> ClientCampaign:
    """
    Draw a random campaign of a user within the limits of a fault plan.

    Parameters
    ----------
    chance, edges
        Random sources of the tasks, and of their dependencies and retries.
    """
    name = f"{user}-{number}"
    buys = None
    if chance.random() < plan.buys:
        most = max(1, plan.processors // chance.choice((1, 3)))
        buys = chance.randint(1, most), chance.choice((20.0, 60.0, 200.0))
    widest = plan.processors if buys is None else buys[0]
    cancels = chance.random() < plan.cancels
    seals = chance.random() < plan.seals
    pieces: dict[str, list[SimulatedTask]] = {}
    for submission in range(chance.randint(1, 3)):
        count = chance.randint(1, plan.pieces)
        pieces[f"{name}-{submission}"] = [
            _draw_task(
                f"{name}-{submission}-{i}",
                widest if not plan.bursts else 1,
                chance,
                longer=cancels,
                is_sealed=seals,
                is_short=i < plan.bursts * count,
            )
            for i in range(count)
        ]
    _draw_dependencies(pieces, plan, edges)
    campaign = ClientCampaign(
        user=user,
        name=name,
        pieces=pieces,
        pauses={key: chance.choice((0.0, chance.uniform(0, 30))) for key in pieces},
        buys=buys,
        at_once=plan.at_once or None,
        way=chance.choice(get_args(NegotiationWay)),
        willing=chance.uniform(0.6, 1.1),
        watches=chance.random() < plan.watches,
        streams=chance.random() < 0.5,
        forgets=chance.random() < 0.4,
    )
    if cancels:
        campaign.cancels_after = chance.uniform(0, 60)
        names = [piece.name for some in pieces.values() for piece in some]
        if chance.random() < 0.7:
            campaign.cancels = frozenset(chance.sample(names, chance.randint(1, len(names))))
    if chance.random() < plan.destroys:
        campaign.destroys_after = chance.uniform(0, 120)
    if buys is not None and chance.random() < plan.withdraws:
        campaign.withdraws_after = chance.uniform(0, 30)
    return campaign


def _draw_dependencies(
    pieces: dict[str, list[SimulatedTask]], plan: FaultPlan, chance: random.Random
) -> None:
    """Let tasks come after earlier ones, also of earlier submissions, and be tried again."""
    earlier: list[str] = []
    for some in pieces.values():
        linked = chance.random() < plan.depends
        for i, piece in enumerate(some):
            after: list[str] = []
            if linked and earlier and chance.random() < 0.6:
                # Near ones, for chains as well as for trees.
                near = earlier[-chance.choice((1, 3, 10)) :]
                after = chance.sample(near, min(len(near), chance.randint(1, 3)))
            if chance.random() < plan.retries:
                piece = replace(
                    piece,
                    exit_code=int(piece.exit_code or chance.random() < 0.6),
                    flaky=chance.random() < 0.5,
                    retries=chance.randint(1, 4),
                    retry_delay=chance.choice((0.0, chance.uniform(0.1, 5.0))),
                )
            some[i] = replace(piece, after=tuple(after))
            earlier.append(piece.name)


def _draw_task(
    name: str,
    widest: int,
    chance: random.Random,
    *,
    longer: bool,
    is_sealed: bool,
    is_short: bool,
) -> SimulatedTask:
    """
    Draw a task; with ``longer``, some run long enough to show whether a cancellation stops them.
    """
    times = [0.01, chance.uniform(0.1, 5.0), chance.uniform(5.0, 20.0)]
    if longer:
        times.append(chance.uniform(20.0, 90.0))
    seconds = chance.choice(times)
    if is_short:
        seconds = chance.uniform(0.002, 0.02)
    return SimulatedTask(
        name=name,
        seconds=seconds,
        is_sealed=is_sealed,
        exit_code=int(chance.random() < 0.1),
        processors=chance.randint(1, widest) if chance.random() < 0.2 else 1,
    )
