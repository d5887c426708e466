"""
What goes wrong in one simulation, drawn from its seed.

Each seed gets some kinds of faults and not others: with all of them all the time, much of what
can go wrong would never be reached, as something else goes wrong before it [1]_.

References
----------
.. [1] Groce, Zhang, Eide, Chen, Regehr (2012). Swarm testing. ISSTA '12: 78-88.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from bursar.simulation.faults.chance import chance_of
from bursar.simulation.faults.network import FAIR, Weather

Moment = Literal[
    "submission", "cancellation", "destruction", "deal", "withdrawal", "change", "segment"
]
"""
What faults may aim at: a request that reaches the service or was acknowledged, by what it is
about; and a segment of the journal that is begun, cut or removed.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """
    What goes wrong, and how much there is to do.

    Parameters
    ----------
    weather
        Of the network while things go wrong.
    trouble
        Seconds for which they do.
    server_life
        Mean number of steps after which the server is killed; 0: it is not.
    deadly_syncs
        Chance that it is killed while it syncs a file.
    power_cuts
        Chance that its end takes the disk's unsynced bytes along.
    drains
        Chance that it is told to end instead, and ends in good order.
    worker_life, client_life
        Mean steps of the others.
    partitions
        Mean seconds between two of them; 0: none.
    disk_trouble
        Mean seconds between two times at which the disk is full, slow or broken; 0: none.
    skew
        Largest difference of a party's clock, seconds.
    drift
        Largest share by which it is too fast or slow.
    users, campaigns, pieces
        How many clients, instances of each, and tasks of each at most.
    buys
        Chance that an instance runs on an agreement.
    processors
        Of the site.
    must_buy, price_shared
        Of the service.
    aims
        Chance that a moment is struck, by what it is.
    cuts
        Whether workers may be cut off then, too.
    cancels, destroys
        Chance that some tasks of an instance are cancelled; that it is destroyed.
    withdraws
        Chance that an agreement is ended before its time.
    watches, seals
        Chance that the changes of an instance are followed; that its tasks are sealed.
    rotates, reprices
        Whether users get other tokens; whether the owner changes its price.
    """

    weather: Weather = FAIR
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
    aims: Mapping[Moment, float] = field(default_factory=dict)
    cuts: bool = False
    cancels: float = 0.3
    destroys: float = 0.15
    withdraws: float = 0.0
    watches: float = 0.0
    seals: float = 0.0
    rotates: bool = False
    reprices: bool = False


def plan_of(seed: int) -> Plan:
    """What a seed brings."""
    chance = chance_of(seed, "plan")

    def some(share: float, low: float, high: float) -> float:
        """Now and then a number of some magnitude, else 0."""
        if chance.random() >= share:
            return 0.0
        return float(low * (high / low) ** chance.random())

    must_buy = chance.random() < 0.15
    plan = Plan(
        weather=_weather(chance),
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
        aims={moment: share for moment in get_args(Moment) if (share := some(0.4, 0.03, 0.8))},
        cuts=chance.random() < 0.6,
        cancels=chance.choice((0.2, 0.9)),
        destroys=chance.choice((0.0, 0.2, 0.5)),
        withdraws=chance.choice((0.3, 1.0)),
        watches=chance.choice((0.0, 0.3, 1.0)),
        seals=chance.choice((0.0, 0.0, 0.3)),
        rotates=chance.random() < 0.4,
        reprices=chance.random() < 0.3,
    )
    if must_buy or chance.random() < 0.7:
        return plan
    # Nothing happens to workers: so whatever they lose, the service has lost.
    weather = replace(plan.weather, breaks=0.0)
    return replace(plan, weather=weather, worker_life=0, partitions=0.0, buys=0.0, cuts=False)


def _weather(chance: random.Random) -> Weather:
    def some(share: float, most: float) -> float:
        return chance.random() * most if chance.random() < share else 0.0

    return Weather(
        delay=some(0.7, 0.5),
        breaks=some(0.5, 0.1),
        loses=some(0.5, 0.3),
        forgets=some(0.5, 0.3),
        repeats=some(0.5, 0.3),
    )
