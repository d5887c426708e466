"""A lease that was given back is paid by its provider's word, or by our clock where it has none."""

import asyncio
import math
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from bursar.market.guard import BudgetGuard
from bursar.market.lease import Lease
from bursar.model.allocation import Allocation
from bursar.model.errors import BudgetStop
from bursar.model.money import MICROS
from bursar.model.site import SiteFacts
from bursar.runs.allocation_provisioner import AllocationProvisioner
from bursar.runs.settlement import SETTLING, SOON, LeaseSettlements, LeaseTerms
from bursar.simulation.virtual_loop import VirtualLoop
from bursar.sites.protocol import MeteredTime
from bursar.sites.shared_leases import SharedLeaseCharge

BEGIN = 1_000.0
"""Seconds since the epoch at which virtual time begins."""


def run(work: Coroutine[object, object, None]) -> None:
    """On virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(work)


def now() -> float:
    return BEGIN + asyncio.get_running_loop().time()


def lease(name: str = "lease-1", site: str = "c1", **more: Any) -> Lease:
    usual = {"processors": 2, "unit_price": 1.0, "fixed_price": 0.0, "start": BEGIN - 10.0}
    return Lease(id=name, site=site, **{**usual, **more})


@dataclass
class Guard:
    """What was asked of the budget's guard."""

    leases: dict[str, Lease] = field(default_factory=dict)
    restored: list[tuple[str, float]] = field(default_factory=list)
    paid: list[tuple[str, tuple[float, float] | None, float, str]] = field(default_factory=list)

    def end(self, name: str, at: float) -> Lease:
        self.leases[name] = lease(name, end=at)
        return self.leases[name]

    def restore(self, found: Lease, at: float) -> None:
        self.leases[found.id] = found
        self.restored.append((found.id, at))

    def pay(
        self,
        name: str,
        held: tuple[float, float] | None,
        at: float,
        by: str,
        **prices: float | None,
    ) -> Lease:
        self.paid.append((name, held, at, by))
        return self.leases.pop(name)

    def transfers(self) -> Sequence[str]:
        return [f"after {len(self.paid)}"]

    @property
    def unsettled(self) -> tuple[str, ...]:
        return tuple(self.leases)

    @property
    def charges(self) -> "Guard":
        return self


@dataclass
class Counting:
    """A site that counts, and answers after so many seconds."""

    answer: MeteredTime | None = None
    takes: float = 0.0
    unwatched: float = 7.0
    error: Exception | None = None
    asked: list[tuple[str, float | None]] = field(default_factory=list)

    async def meter(self, found: Lease, watched: float | None) -> MeteredTime | None:
        self.asked.append((found.id, watched))
        await asyncio.sleep(self.takes)
        if self.error is not None:
            raise self.error
        return self.answer


class Plain:
    """A site that does not count."""


class Scene:
    """Settlements between such sites and such a guard."""

    def __init__(self, **sites: Any) -> None:
        self.guard = Guard()
        self.said: list[str] = []
        self.noted: list[tuple[str, str, Sequence[str]]] = []
        self.settled = 0
        self.settlements = LeaseSettlements(
            sites,
            self.guard,  # type: ignore[arg-type]
            now=now,
            note=lambda *what: self.noted.append(what),  # type: ignore[arg-type]
            notify=self.said.append,
            on_settled=self._on_settled,
        )

    def _on_settled(self) -> None:
        self.settled += 1


def test_a_site_says_whether_it_counts_and_how_long_pilots_go_on() -> None:
    settlements = Scene(c1=Counting(), here=Plain()).settlements
    assert [settlements.keeps_count(site) for site in ("c1", "here", "none")] == [
        True,
        False,
        False,
    ]
    assert [settlements.unwatched(site) for site in ("c1", "here", "none")] == [7.0, 0.0, 0.0]


FINITE = (BEGIN - 10.0, BEGIN + 5.0)


@pytest.mark.parametrize(
    ("answer", "held", "by"),
    [
        (None, FINITE, ""),
        (MeteredTime(seconds=None), None, "record"),
        (MeteredTime(seconds=None, is_recorded=False), None, "bound"),
        (MeteredTime(seconds=4.0), (BEGIN - 10.0, BEGIN - 6.0), "record"),
        (MeteredTime(began=BEGIN - 8.0, seconds=4.0), (BEGIN - 8.0, BEGIN - 4.0), "record"),
        (
            MeteredTime(began=BEGIN - 8.0, seconds=0.0, is_recorded=False),
            (BEGIN - 8.0, BEGIN - 8.0),
            "bound",
        ),
    ],
)
def test_a_lease_of_this_life_is_paid_as_its_provider_says(
    answer: MeteredTime | None, held: tuple[float, float] | None, by: str
) -> None:
    """It is given back at once, and paid when the answer is there, 5 s later."""

    async def main() -> None:
        scene = Scene(c1=(site := Counting(answer, takes=5.0)))
        scene.settlements.end("lease-1")
        (given_back,) = scene.noted
        assert given_back[0] == "lease"
        assert msgspec.json.decode(given_back[1], type=Lease).end == BEGIN
        assert given_back[2] == ["after 0"]
        assert scene.settled == 0
        assert await scene.settlements.wait() == ()
        assert site.asked == [("lease-1", None)]
        assert scene.guard.paid == [("lease-1", held, BEGIN + 5.0, by)]
        assert [noted[2] for noted in scene.noted] == [["after 0"], ["after 1"]]
        assert scene.settled == 1
        assert await scene.settlements.close() == ()

    run(main())


@pytest.mark.parametrize(
    ("more", "held"),
    [
        ({}, (BEGIN - 10.0, BEGIN - 3.0)),
        ({"until": BEGIN - 4.0}, (BEGIN - 10.0, BEGIN - 4.0)),
        ({"until": BEGIN + 4.0}, (BEGIN - 10.0, BEGIN - 3.0)),
        ({"asked": True}, None),
        ({"start": BEGIN - 3.0}, (BEGIN - 3.0, BEGIN - 3.0)),
        ({"start": BEGIN - 2.9}, None),
    ],
)
def test_a_killed_lifes_lease_without_a_count_is_held_until_that_life_was_last_seen(
    more: dict[str, Any], held: tuple[float, float] | None
) -> None:
    """At the latest until it went back; not at all where it was only asked for, or not begun."""

    async def main() -> None:
        scene = Scene(c1=(site := Counting(None)))
        scene.settlements.restore(lease(**more), BEGIN - 3.0)
        assert await scene.settlements.wait() == ()
        assert scene.guard.restored == [("lease-1", BEGIN)]
        assert site.asked == [("lease-1", BEGIN - 3.0)]
        assert scene.guard.paid == [("lease-1", held, BEGIN, "")]

    run(main())


def test_a_run_says_what_it_waits_for_when_that_takes_long() -> None:
    """After three seconds, and no longer than it was told."""

    async def main() -> None:
        unforeseen: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, told: unforeseen.append(told))
        slow, slower = Counting(None, takes=20.0), Counting(None, takes=1e4)
        scene = Scene(c1=slow, c2=slower)
        scene.settlements.end("lease-1")
        begin = now()
        assert await scene.settlements.wait(2.5) == ("lease-1",)
        assert (now() - begin, scene.said) == (2.5, [])
        assert await scene.settlements.wait(SOON) == ("lease-1",)
        assert (now() - begin, scene.said) == (2.5 + SOON, [])
        assert await scene.settlements.wait(SOON + 1.0) == ("lease-1",)
        assert now() - begin == 3.5 + 2 * SOON
        assert scene.said == ["waits up to 4 s until c1 says what 1 lease came to"]
        scene.settlements.restore(lease("lease-2", "c2"), BEGIN)
        scene.settlements.restore(lease("lease-3", "c2"), BEGIN)
        assert await scene.settlements.wait() == ("lease-2", "lease-3")
        assert now() - begin == 3.5 + 2 * SOON + SETTLING
        assert scene.said[1:] == ["waits up to 60 s until c1, c2 says what 3 leases came to"]
        assert await scene.settlements.close() == ("lease-2", "lease-3")
        assert scene.said[2:] == [
            "c2 did not say what 2 leases came to (lease-2, lease-3): the money stays set aside;"
            " bursar run --resume settles"
        ]
        assert [name for name, *_ in scene.guard.paid] == ["lease-1"]
        assert unforeseen == []

    run(main())


def test_what_settles_within_a_moment_is_not_worth_a_word() -> None:
    async def main() -> None:
        scene = Scene(c1=Counting(None, takes=SOON - 0.5))
        scene.settlements.end("lease-1")
        assert await scene.settlements.wait() == ()
        assert now() == BEGIN + SOON - 0.5
        assert await scene.settlements.wait() == ()
        assert scene.said == []

    run(main())


def test_an_error_is_said_and_leaves_the_money_set_aside() -> None:
    """What was cancelled is no error."""

    async def main() -> None:
        scene = Scene(c1=Counting(error=ValueError("no such job")))
        scene.settlements.end("lease-1")
        assert await scene.settlements.wait() == ()
        await asyncio.sleep(0)
        assert scene.said == ["lease-1 is not settled: no such job"]
        assert scene.settled == 0
        assert await scene.settlements.close() == ("lease-1",)
        assert scene.said[1:] == [
            "a site did not say what 1 lease came to (lease-1): the money stays set aside;"
            " bursar run --resume settles"
        ]

    run(main())


class Lent:
    """A site of whose processors other runs have had half."""

    facts = SiteFacts(name="here", processors=2, unit_price=1.0)

    def share(self, demand: object, leases: object) -> None:
        """It is shared, but not asked here."""

    def lent(self) -> Mapping[str, float]:
        return {}

    async def reserve(self, pilots: Sequence[Allocation]) -> float:
        return 0.0

    def end_lease(self, name: str, seconds: float) -> SharedLeaseCharge:
        return SharedLeaseCharge(amount=round(seconds * MICROS), seconds=seconds)


def test_a_lease_that_was_taken_over_in_vain_is_paid_without_what_others_had() -> None:
    """There is no money for what the plan buys besides, so that none of it is begun."""

    async def scene() -> None:
        site: Any = Lent()
        guard = BudgetGuard(100 * MICROS, limit_of=lambda task: None)
        guard.begin(now())
        # Two processors for 10 s at 1 a processor-second, of which the others paid half.
        assert guard.open(lease(site="here"), now()) is None
        dismissed: list[str] = []
        dispatcher: Any = SimpleNamespace(
            now=now, address=("", 0), token="", pilot_listener=None, dismiss=dismissed.append
        )
        noted: list[Lease] = []
        provision = AllocationProvisioner(
            sites={"here": site},
            guard=guard,
            dispatcher=dispatcher,
            terms=LeaseTerms(run="r", currency="SU", rigid=False, inherited=["lease-1"]),
            note=lambda kind, text, _: noted.append(msgspec.json.decode(text, type=Lease)),
            notify=print,
            on_fault=lambda *_: None,
            on_left_over=lambda *_: None,
            settlements=LeaseSettlements(
                {"here": site},
                guard,
                now=now,
                note=lambda *_: None,
                notify=print,
                on_settled=lambda: None,
            ),
        )
        dear = {"unit_price": 1.0, "fixed_price": 1000.0, "duration": math.inf}
        with pytest.raises(BudgetStop):
            await provision.sign([Allocation(name="lease-2", site="here", processors=1, **dear)])

        provision.give_back_unused()

        assert dismissed == ["lease-1"]
        (paid,) = noted
        assert paid.end == BEGIN
        assert paid.credit == 10 * MICROS
        assert guard.ledger.spent == 10 * MICROS
        assert guard.ledger.held == 0

    run(scene())
