"""Who has the processors of our own machine: by example, and held against what must never be."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.thoroughness import examples

from bursar.model.allocation import Allocation, AllocationLoad, AllocationRequest
from bursar.model.provisioning import ProcessorDemand
from bursar.provisioning.pool_snapshot import AllocationRelease
from bursar.service.interfaces import WorkerDemand, is_shared
from bursar.service.provisioner.lease_policies import (
    AHEAD,
    SETTLING,
    MachineLeasePolicy,
    ProvisioningView,
    fair_shares,
)


def waiting(tasks: int, widest: int = 1, running: int = 0) -> ProcessorDemand:
    return ProcessorDemand(tasks=tasks, processors=tasks * widest, widest=widest, running=running)


def owed(processors: int, start: float = 0.0, until: float = 100.0) -> WorkerDemand:
    return WorkerDemand(user="ann", processors=processors, start=start, until=until)


def lease(
    name: str,
    pool: str = "shared",
    processors: int = 1,
    *,
    busy: int = 0,
    idle_since: float | None = 0.0,
    **others: object,
) -> Allocation:
    return Allocation(
        name=name,
        pool=pool,
        processors=processors,
        granted=0.0,
        workload=AllocationLoad(ready=processors, busy=busy, idle_since=idle_since),
        **others,  # type: ignore[arg-type]
    )


def busy(name: str, pool: str = "shared", processors: int = 1) -> Allocation:
    return lease(name, pool, processors, busy=processors, idle_since=None)


def view(now: float = 10.0, processors: int = 4, **others: object) -> ProvisioningView:
    return ProvisioningView(now=now, processors=processors, **others)  # type: ignore[arg-type]


def test_workers_are_there_before_a_task_is() -> None:
    """A single task finds a worker that has been started; one more look opens nothing more."""
    rules = MachineLeasePolicy(unit=2)

    assert rules.decide(view()) == [AllocationRequest(pool="shared", processors=2)] * 2
    there = [lease("a", processors=2), lease("b", processors=2)]
    assert rules.decide(view(leases=there)) == []
    assert rules.wake == math.inf


def test_an_agreement_has_its_processors_from_its_start() -> None:
    """Shared workers in its way get nothing more before, and are stopped at its start."""
    rules = MachineLeasePolicy()
    leases = [busy("a"), busy("b"), busy("c"), lease("d")]
    wanted = {"deal": owed(2, start=20.0)}

    assert rules.decide(view(now=20.0 - AHEAD - 1, leases=leases, wanted=wanted)) == []
    assert rules.wake == 20.0 - AHEAD
    before = rules.decide(view(now=20.0 - AHEAD, leases=leases, wanted=wanted))
    assert [(d.name, d.at_once) for d in before if isinstance(d, AllocationRelease)] == [
        ("d", False),
        ("a", False),
    ]
    leases = [lease("a", busy=1, idle_since=None, leaving=True), *leases[1:3]]
    at_start = rules.decide(view(now=20.0, leases=leases, wanted=wanted))
    assert at_start == [
        AllocationRelease(name="a", reason="its processors are sold from now on", at_once=True),
        AllocationRequest(pool="deal", processors=1, until=100.0),
    ]


def test_an_agreement_that_is_over_has_nothing() -> None:
    """At its end, or when nobody knows of it any more, its workers stop, once."""
    rules = MachineLeasePolicy(warm=False)
    held = [lease("a", "deal"), lease("b", "gone"), lease("c", "deal", stopped=True, leaving=True)]

    decisions = rules.decide(view(now=100.0, leases=held, wanted={"deal": owed(2)}))

    assert [(d.name, d.at_once) for d in decisions if isinstance(d, AllocationRelease)] == [
        ("a", True),
        ("b", True),
    ]
    assert len(decisions) == 2


def test_a_wide_task_gets_a_worker_that_is_wide_enough() -> None:
    """Idle small ones make way for it; it is opened when they are gone, and not in pieces."""
    rules = MachineLeasePolicy()
    demand = {"shared": waiting(1, widest=3)}
    leases = [busy("a"), lease("b"), lease("c"), lease("d")]

    closes = rules.decide(view(leases=leases, demand=demand))
    assert [d.name for d in closes if isinstance(d, AllocationRelease)] == ["b", "c", "d"]
    going = [leases[0], *(lease(name, leaving=True) for name in "bcd")]
    assert rules.decide(view(leases=going, demand=demand)) == []
    assert rules.decide(view(leases=going[:2], demand=demand)) == []
    assert rules.decide(view(leases=going[:1], demand=demand)) == [
        AllocationRequest(pool="shared", processors=3)
    ]


def test_a_task_that_is_too_wide_for_all_there_is_holds_nobody_up() -> None:
    """The others of its pool run meanwhile."""
    demand = {"shared:ann": ProcessorDemand(tasks=3, processors=11, widest=9)}

    decisions = MachineLeasePolicy(warm=False).decide(view(demand=demand))

    assert decisions == [AllocationRequest(pool="shared:ann", processors=1)] * 4


def test_who_has_more_than_a_share_gives_way() -> None:
    """Two users' pools with endless work share evenly; idle processors move first."""
    rules = MachineLeasePolicy(warm=False)
    demand = {"shared:ann": waiting(50, running=4), "shared:bob": waiting(50)}
    leases = [busy(name, "shared:ann") for name in "abcd"]

    decisions = rules.decide(view(leases=leases, demand=demand))
    assert [d.name for d in decisions if isinstance(d, AllocationRelease)] == ["a", "b"]
    assert not any(isinstance(d, AllocationRelease) and d.at_once for d in decisions)
    left = [*(lease(n, "shared:ann", leaving=True) for n in "ab"), *leases[2:]]
    assert rules.decide(view(leases=left, demand=demand)) == []
    assert (
        rules.decide(view(leases=left[2:], demand=demand))
        == [AllocationRequest(pool="shared:bob", processors=1)] * 2
    )


def test_a_users_idle_worker_goes_after_a_while() -> None:
    """But not while it may be about to get the next task, nor while nobody else wants it."""
    rules = MachineLeasePolicy(warm=False, idle=30.0)
    idle = lease("a", "shared:ann", idle_since=10.0)

    assert rules.decide(view(now=39.0, leases=[idle])) == []
    assert rules.wake == 40.0
    (gone,) = rules.decide(view(now=40.0, leases=[idle]))
    assert gone == AllocationRelease(name="a", reason="idle for 30 s")
    others = {"shared:bob": waiting(1)}
    early = 10.0 + SETTLING / 2
    assert rules.decide(view(now=early, processors=1, leases=[idle], demand=others)) == []
    assert rules.wake == 10.0 + SETTLING
    (gone,) = rules.decide(view(now=12.0, processors=1, leases=[idle], demand=others))
    assert isinstance(gone, AllocationRelease)


@given(
    st.dictionaries(
        st.sampled_from("abcdef"),
        st.builds(
            lambda tasks, widest: waiting(tasks, widest), st.integers(0, 9), st.integers(1, 4)
        ),
    ),
    st.integers(0, 20),
    st.integers(0, 5),
)
def test_shares_are_fair(pools: dict[str, ProcessorDemand], room: int, first: int) -> None:
    """Nobody has more than is needed, all together not more than there is, none starves others."""
    shares = fair_shares(pools, room, first=first)

    assert sum(shares.values()) <= room
    for name, demand in pools.items():
        assert 0 <= shares[name] <= demand.processors
        if demand.widest <= room:
            assert not 0 < shares[name] < min(demand.widest, demand.processors)
        unmet = shares[name] < demand.processors
        if unmet and shares[name]:
            widest = max(demand.widest for demand in pools.values())
            assert all(shares[other] <= max(shares[name] + 1, widest) for other in pools)
    if all(demand.widest == 1 for demand in pools.values()):
        needed = sum(demand.processors for demand in pools.values())
        assert sum(shares.values()) == min(room, needed)


class Carried(RuleBasedStateMachine):
    """A machine whose leases come and go as the rules say, in any order and at any pace."""

    SIZE = 5

    def __init__(self) -> None:
        super().__init__()
        self.rules = MachineLeasePolicy(unit=2, warm=True)
        self.now = 0.0
        self.count = 0
        self.leases: dict[str, Allocation] = {}
        self.wanted: dict[str, WorkerDemand] = {}
        self.demand: dict[str, ProcessorDemand] = {}

    def poll(self) -> list[AllocationRequest | AllocationRelease]:
        decisions = self.rules.decide(
            ProvisioningView(
                now=self.now,
                processors=self.SIZE,
                wanted=self.wanted,
                demand=self.demand,
                leases=list(self.leases.values()),
            )
        )
        for decision in decisions:
            if isinstance(decision, AllocationRequest):
                self.count += 1
                name = f"l{self.count}"
                self.leases[name] = lease(
                    name, decision.pool, decision.processors, idle_since=self.now
                )
            else:
                self.change(decision.name, leaving=True)
                if decision.at_once:
                    self.change(decision.name, stopped=True)
        return decisions

    def change(self, name: str, **changes: object) -> None:
        from dataclasses import replace

        self.leases[name] = replace(self.leases[name], **changes)  # type: ignore[arg-type]

    def sold(self, start: float, until: float) -> int:
        """The most that is sold at a moment of a time."""
        moments = [start, *(w.start for w in self.wanted.values() if start <= w.start < until)]
        return max(
            sum(w.processors for w in self.wanted.values() if w.start <= m < w.until)
            for m in moments
        )

    @rule(processors=st.integers(1, 5), ahead=st.integers(0, 9), seconds=st.integers(1, 20))
    def sell(self, processors: int, ahead: int, seconds: int) -> None:
        start = self.now + ahead
        if self.sold(start, start + seconds) + processors <= self.SIZE:
            self.wanted[f"deal-{len(self.wanted)}"] = owed(processors, start, start + seconds)

    @rule(
        pool=st.sampled_from(["shared", "shared:ann", "deal-0"]),
        tasks=st.integers(0, 8),
        widest=st.integers(1, 5),
    )
    def ask(self, pool: str, tasks: int, widest: int) -> None:
        self.demand[pool] = waiting(tasks, widest)

    @precondition(lambda self: self.leases)
    @rule(number=st.integers(0, 20), works=st.booleans())
    def work(self, number: int, works: bool) -> None:
        name = list(self.leases)[number % len(self.leases)]
        size = self.leases[name].processors
        load = AllocationLoad(
            ready=size, busy=size if works else 0, idle_since=None if works else self.now
        )
        self.change(name, workload=load)

    @precondition(lambda self: any(x.leaving for x in self.leases.values()))
    @rule()
    def leave(self) -> None:
        for name, one in list(self.leases.items()):
            if one.leaving and (one.stopped or not one.workload.busy):
                del self.leases[name]

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 2.0, 61.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.poll()

    @invariant()
    def never_more_than_there_are(self) -> None:
        """Not even while some are on their way out."""
        self.poll()
        assert sum(x.processors for x in self.leases.values()) <= self.SIZE
        for pool, wanted in self.wanted.items():
            held = [x for x in self.leases.values() if x.pool == pool and not x.leaving]
            assert sum(x.processors for x in held) <= wanted.processors

    @invariant()
    def settles(self) -> None:
        """As long as nothing happens it comes to rest; what was sold has its processors then."""
        for _ in range(12):
            for name, one in list(self.leases.items()):
                if one.leaving and (one.stopped or not one.workload.busy):
                    del self.leases[name]
            if not self.poll() and not any(
                x.leaving and (x.stopped or not x.workload.busy) for x in self.leases.values()
            ):
                break
        else:
            raise AssertionError("the rules never come to rest")
        for pool, wanted in self.wanted.items():
            held = [x for x in self.leases.values() if x.pool == pool and not x.leaving]
            due = wanted.start <= self.now < wanted.until
            widest = self.demand.get(pool, ProcessorDemand()).widest
            # Workers that made way for a wider one keep their processors until their tasks end.
            ending = sum(
                x.processors
                for x in self.leases.values()
                if x.pool == pool and x.leaving and x.workload.busy and not x.stopped
            )
            if due and not widest > 2:
                count = sum(x.processors for x in held)
                assert wanted.processors - ending <= count <= wanted.processors
            if not due:
                assert not held
        for one in self.leases.values():
            assert is_shared(one.pool) or one.pool in self.wanted


Carried.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=25)
TestCarried = Carried.TestCase
