"""
Draws the faults of one simulation from a seed.

Each seed gets some kinds of faults and not others: with all of them all the time, many failures
would never be reached, as another comes first [1]_.

References
----------
.. [1] Groce, Zhang, Eide, Chen, Regehr (2012). Swarm testing. ISSTA '12: 78-88.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from bursar.model.provisioning import AcquisitionPolicy, BatchScheduler
from bursar.model.site import SiteFacts
from bursar_devtools.faults.faulty_network import FAULTLESS, NetworkConditions


def seeded_random(seed: int, concern: str) -> random.Random:
    """Return a random source for one concern, independent of draws for others."""
    return random.Random(f"{seed} {concern}")


FaultTarget = Literal[
    "submission", "cancellation", "destruction", "deal", "withdrawal", "change", "merge", "job"
]
"""
Event at which a targeted fault may strike: a request that arrived or was acknowledged, by its
subject; the store's write-ahead log merged into the database; a job submitted to a batch
scheduler, or cancelled there.
"""

UNIT_PRICE = 0.001
"""Initial price of a processor-second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """
    Holds the kinds and rates of a simulation's faults, and the size of the load.

    Parameters
    ----------
    conditions
        Conditions of the network while faults are on.
    trouble
        Seconds for which faults are on.
    server_life
        Mean number of steps after which the service is killed; 0 for never.
    deadly_syncs
        Probability that the service is killed in the midst of work on its disk, or just after it.
    power_cuts
        Probability that the service's end comes with a power cut, which loses unsynced bytes.
    drains
        Probability that a service process is drained and ends in good order.
    worker_life, client_life
        Mean number of steps after which a worker or a client is killed; 0 for never.
    partitions
        Mean seconds between two partitions; 0 for none.
    disk_trouble
        Mean seconds between two times at which the disk is full, slow or broken; 0 for none.
    skew
        Largest clock skew of a party, seconds.
    drift
        Largest clock drift of a party, as a share.
    users, campaigns, pieces
        Number of users, instances of each user, and most tasks in a submission.
    buys
        Probability that an instance runs under an agreement.
    processors
        Processors of the site.
    must_buy, price_shared
        Market settings of the service: whether tasks run only under an agreement, and whether
        shared processors are charged.
    aims
        Probability that a targeted fault strikes at an event, by kind of event.
    cuts
        Whether targeted faults may also partition workers.
    cancels, destroys
        Probability that some tasks of an instance are cancelled; that the instance is destroyed.
    withdraws
        Probability that an agreement is cancelled before its end.
    watches, seals
        Probability that a user follows an instance's events; that its tasks are sealed.
    rotates, reprices
        Whether users' tokens are replaced; whether the owner changes the price.
    evictions
        Mean seconds between two evictions of a worker; 0 for none.
    repeats_returns
        Whether workers report returned jobs again, over later connections.
    strangers
        Mean seconds between two bursts of unauthenticated connections; 0 for none.
    certificate
        Mean seconds between two expiries of the certificate; 0 for none.
    expires
        Whether some tokens and instances are short-lived, and credentials of ended leases are tried
        again.
    log
        Bytes of the service's write-ahead log after which it is merged into the database.
    batch
        Whether the site is a cluster with a batch scheduler.
    controller, others, nodes
        Mean seconds between two outages of the cluster's controller, two jobs of other users, and
        two losses of a pilot's node; 0 for none.
    others_last
        Mean seconds of other users' jobs.
    forgets
        Probability that an answer of the controller is lost.
    asked_in_vain
        Probability that the controller goes down just when it is asked to submit or cancel jobs.
    longest
        Longest walltime of a pilot, seconds.
    penalty
        Share of the price of undelivered time that the owner pays to its customers.
    outages
        Mean seconds between two times at which the machine has no processors; 0 for none.
    warns
        Whether pilots get a signal some time before their walltime limit.
    depends
        Probability that tasks of a submission come after others.
    retries
        Share of the tasks of a submission that are tried again after a failure.
    at_once
        Tasks of each campaign that may run at a time; 0: any number.
    bursts
        Share of a submission's tasks, the first ones, that take hundredths of a second, so that
        many tasks wait at workers while longer ones follow.
    """

    conditions: NetworkConditions = FAULTLESS
    trouble: float = 120.0
    server_life: int = 0
    deadly_syncs: float = 0.0
    power_cuts: float = 0.0
    drains: float = 0.0
    worker_life: int = 0
    client_life: int = 0
    partitions: float = 0.0
    disk_trouble: float = 0.0
    skew: float = 0.0
    drift: float = 0.0
    users: int = 2
    campaigns: int = 2
    pieces: int = 12
    buys: float = 0.0
    processors: int = 4
    must_buy: bool = False
    price_shared: bool = False
    targeting: Mapping[FaultTarget, float] = field(default_factory=dict)
    cuts: bool = False
    cancels: float = 0.3
    destroys: float = 0.15
    withdraws: float = 0.0
    watches: float = 0.0
    seals: float = 0.0
    rotates: bool = False
    reprices: bool = False
    evictions: float = 0.0
    repeats_returns: bool = False
    strangers: float = 0.0
    certificate: float = 0.0
    expires: bool = False
    log: int = 64 * 1024
    bursts: float = 0.0
    depends: float = 0.0
    retries: float = 0.0
    at_once: int = 0
    batch: bool = False
    controller: float = 0.0
    others: float = 0.0
    nodes: float = 0.0
    others_last: float = 40.0
    forgets: float = 0.0
    asked_in_vain: float = 0.0
    longest: float = 36_000.0
    warns: bool = False
    penalty: float = 0.0
    outages: float = 0.0


def fault_plan_of(seed: int) -> FaultPlan:
    """Draw the fault plan of a seed."""
    chance = seeded_random(seed, "plan")

    def some(share: float, low: float, high: float) -> float:
        """Now and then a number of some magnitude, else 0."""
        if chance.random() >= share:
            return 0.0
        return float(low * (high / low) ** chance.random())

    must_buy = chance.random() < 0.15
    plan = FaultPlan(
        conditions=_network_conditions(chance),
        trouble=chance.uniform(20.0, 120.0),
        server_life=int(some(0.75, 300, 6_000)),
        deadly_syncs=some(0.5, 0.003, 0.1),
        power_cuts=chance.choice((0.0, 0.5, 1.0)),
        drains=chance.choice((0.0, 0.0, 0.3)),
        worker_life=int(some(0.5, 20, 600)),
        client_life=int(some(0.4, 100, 2_000)),
        partitions=some(0.4, 5.0, 60.0),
        disk_trouble=some(0.3, 10.0, 60.0),
        skew=some(0.5, 0.1, 60.0),
        drift=some(0.3, 1e-5, 1e-2),
        users=chance.randint(1, 3),
        campaigns=chance.randint(1, 3),
        pieces=chance.choice((3, 10, 25)),
        buys=1.0 if must_buy else chance.choice((0.0, 0.5, 1.0)),
        processors=chance.randint(1, 6),
        must_buy=must_buy,
        price_shared=chance.random() < 0.5,
        targeting={
            moment: share
            for moment in get_args(FaultTarget)
            if moment != "job" and (share := some(0.4, 0.03, 0.8))
        },
        cuts=chance.random() < 0.6,
        cancels=chance.choice((0.2, 0.9)),
        destroys=chance.choice((0.0, 0.2, 0.5)),
        withdraws=chance.choice((0.3, 1.0)),
        watches=chance.choice((0.0, 0.3, 1.0)),
        seals=chance.choice((0.0, 0.0, 0.3)),
        rotates=chance.random() < 0.4,
        reprices=chance.random() < 0.3,
    )
    if not must_buy and chance.random() >= 0.7:
        # No fault hits workers, so that any loss at a worker is the service's error.
        conditions = replace(plan.conditions, breaks=0.0)
        plan = replace(
            plan, conditions=conditions, worker_life=0, partitions=0.0, buys=0.0, cuts=False
        )
    plan = _with_connections_and_ends(plan, seeded_random(seed, "plan of connections and ends"))
    plan = _with_batch_site(plan, seeded_random(seed, "plan of a batch site"))
    plan = _with_penalties(plan, seeded_random(seed, "plan of penalties"))
    chance = seeded_random(seed, "plan of dependencies")
    plan = replace(plan, depends=chance.choice((0.0, 0.5, 1.0)), retries=chance.choice((0.0, 0.3)))
    return replace(plan, at_once=seeded_random(seed, "plan of groups").choice((0, 0, 1, 2, 3)))


def _with_connections_and_ends(plan: FaultPlan, chance: random.Random) -> FaultPlan:
    """Add what goes wrong below TLS, what expires, and how large the store's log becomes."""

    def some(share: float, low: float, high: float) -> float:
        return float(low * (high / low) ** chance.random()) if chance.random() < share else 0.0

    spares_workers = not (
        plan.worker_life or plan.partitions or plan.cuts or plan.conditions.breaks
    )
    superseded = not spares_workers and chance.random() < 0.5
    conditions = replace(
        plan.conditions,
        handshakes=some(0.4, 0.02, 0.5),
        half_closes=some(0.4, 0.01, 0.2),
        tears=some(0.3, 0.003, 0.1),
    )
    if superseded:
        breaks = max(plan.conditions.breaks, chance.uniform(0.02, 0.2))
        stalls = chance.uniform(0.3, 1.0)
        conditions = replace(conditions, breaks=breaks, stalls=stalls, lingers=1.0)
    evictions = some(0.7 if superseded else 0.2, 5.0, 60.0)
    plan = replace(
        plan,
        strangers=some(0.2, 5.0, 60.0),
        certificate=some(0.2, 10.0, 60.0),
        expires=chance.random() < 0.5,
        repeats_returns=chance.random() < 0.5,
        price_shared=plan.price_shared or chance.random() < 0.5,
        destroys=max(plan.destroys, chance.choice((0.0, 0.0, 0.6))),
        log=chance.choice((8, 32, 128)) * 1024,
    )
    if chance.random() < (0.8 if superseded else 0.3):
        plan = replace(
            plan,
            bursts=0.8,
            users=min(2, plan.users),
            campaigns=1,
            pieces=120,
            processors=max(3, plan.processors),
        )
    if spares_workers:
        return plan
    return replace(plan, conditions=conditions, evictions=evictions)


def _with_batch_site(plan: FaultPlan, chance: random.Random) -> FaultPlan:
    """Let some seeds have their workers through a batch scheduler."""

    def some(share: float, low: float, high: float) -> float:
        return float(low * (high / low) ** chance.random()) if chance.random() < share else 0.0

    if plan.must_buy or chance.random() >= 0.25:
        return plan
    spares_workers = not (
        plan.worker_life or plan.partitions or plan.cuts or plan.conditions.breaks
    )
    plan = replace(
        plan,
        batch=True,
        buys=0.0,
        controller=some(0.7, 5.0, 60.0),
        others=some(0.7, 5.0, 60.0),
        forgets=some(0.6, 0.02, 0.5),
        asked_in_vain=some(0.6, 0.1, 0.9),
    )
    if aimed := some(0.5, 0.03, 0.5):
        plan = replace(plan, targeting={**plan.targeting, "job": aimed})
    if chance.random() < 0.5:
        # Pilots wait for so long that they are given up again.
        plan = replace(plan, others=chance.uniform(20.0, 60.0), others_last=200.0)
    if spares_workers:
        return plan
    return replace(
        plan,
        nodes=some(0.5, 5.0, 60.0),
        longest=chance.choice((600.0, 36_000.0)),
        warns=chance.random() < 0.5,
    )


def _with_penalties(plan: FaultPlan, chance: random.Random) -> FaultPlan:
    """Let some owners that sell promise a penalty, and fail to deliver."""
    if not plan.buys or plan.batch or chance.random() >= 0.5:
        return plan
    # For long enough that an agreement can lose more than the minute that costs nothing.
    return replace(
        plan,
        penalty=chance.choice((0.2, 1.0)),
        outages=chance.choice((0.0, 10.0, 30.0)),
        trouble=max(plan.trouble, 240.0),
        withdraws=plan.withdraws / 3,
    )


def _network_conditions(chance: random.Random) -> NetworkConditions:
    def some(share: float, most: float) -> float:
        return chance.random() * most if chance.random() < share else 0.0

    return NetworkConditions(
        delay=some(0.7, 0.5),
        breaks=some(0.5, 0.1),
        loses=some(0.5, 0.3),
        forgets=some(0.5, 0.3),
        repeats=some(0.5, 0.3),
    )


def site_facts_of(plan: FaultPlan, name: str) -> SiteFacts:
    """Return the facts of the simulated service's site."""
    facts = SiteFacts(
        name=name,
        kind="local",
        processors=plan.processors,
        unit_price=UNIT_PRICE,
        fixed_price=0.0,
    )
    if not plan.batch:
        return facts
    acquiring = AcquisitionPolicy(
        shortest=plan.longest / 2, longest=plan.longest, idle=20.0, probe_every=10.0
    )
    batch = BatchScheduler(manager="slurm", reach="127.0.0.1")
    return replace(facts, kind="batch", batch=batch, acquiring=acquiring)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFaultPlan:
    """
    What goes wrong in a simulated run, drawn from its seed.

    Parameters
    ----------
    copies, kills, breaks, deaths, cancellations, purchases
        How many begin or happen a second while there are faults; purchases are of processors for
        copies.
    fails, unpublished
        Share of attempts that fail, and of outputs of copies that cannot be published.
    has_files
        Whether tasks make outputs.
    """

    copies: float
    kills: float
    breaks: float
    deaths: float
    cancellations: float
    fails: float
    unpublished: float
    has_files: bool
    purchases: float


def run_plan_of(seed: int) -> RunFaultPlan:
    """Draw the faults of a seed; each is left out of some seeds."""
    chance = seeded_random(seed, "run plan")

    def rate(*rates: float) -> float:
        return chance.choice(rates)

    return RunFaultPlan(
        copies=rate(0.0, 0.3, 1.0, 3.0),
        kills=rate(0.0, 0.05, 0.2),
        breaks=rate(0.0, 0.1, 0.3),
        deaths=rate(0.0, 0.0, 0.05, 0.1),
        cancellations=rate(0.0, 0.0, 0.05),
        fails=rate(0.0, 0.1, 0.3),
        unpublished=rate(0.0, 0.0, 0.2),
        has_files=chance.random() < 0.7,
        purchases=rate(0.0, 0.2, 1.0),
    )
