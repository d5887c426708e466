"""Facts of a site that offers processors, and how other Bursars and Dask clusters are reached."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from bursar.model.cloud import CloudEndpoint
from bursar.model.matching import Fact
from bursar.model.money import DataPrices, ExchangeRate, Pricing, check_currency
from bursar.model.network import Link
from bursar.model.provisioning import (
    ENDING,
    PATIENCE,
    STARTING,
    AcquisitionPolicy,
    BatchScheduler,
    SshHosts,
)
from bursar.model.slot import Slot
from bursar.model.task import Task

# Where an existing Dask cluster is found.


@dataclass(frozen=True, slots=True, kw_only=True)
class DaskEndpoint:
    """
    Describes a Dask scheduler and the connection to the scheduler.

    Parameters
    ----------
    scheduler
        Address of the scheduler, ``"tcp://host:port"`` or ``"tls://host:port"``.
    ca, certificate, key
        PEM files, of TLS; all three or none.
    """

    scheduler: str
    ca: str = ""
    certificate: str = ""
    key: str = ""


# How another Bursar is reached that is used as a site.

SealLevel = Literal["conversation", "message"]
"""
Whether one agreement on keys seals many tasks, or each task and result has its own: GSI *secure
conversation* and *secure message* in table 2 of the DRP paper.
"""

Trust = Literal["data", "pickle"]
"""
Whether results of Python calls come back as data, which can run no code here, or as pickles, by
which whoever makes them runs code as the user who reads them.
"""

REMOTE_PATIENCE = 30.0
"""Seconds for which a service that does not answer is waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteEndpoint:
    """
    Describes an execution service and the connection to the service.

    Parameters
    ----------
    url
        Address of the service, ``"https://host:port"``.
    token_file
        File whose only line is the user's token; empty: there is none.
    ca, certificate, key
        PEM files, of TLS; empty: the system's authorities, and no certificate of one's own.
    fingerprint
        SHA-256 of the service's certificate, hexadecimal; empty: it is not looked at.
    seal
        How tasks are sealed, so that the service cannot read them; None: they are in clear.
    patience
        Seconds for which it may be out of reach before its processors count as lost.
    trust
        In what form results of Python calls come back from it.
    """

    url: str
    token_file: str = ""
    ca: str = ""
    certificate: str = ""
    key: str = ""
    fingerprint: str = ""
    seal: SealLevel | None = None
    patience: float = REMOTE_PATIENCE
    trust: Trust = "data"


# How a buyer comes to a price with the owner of a site.

NegotiatedMarket = Literal["posted", "bargain", "tender"]
"""The posted price, bargaining from offer to counter-offer, or a call for tenders."""

AuctionRule = Literal["english", "dutch", "first-price", "vickrey", "share"]
"""Rule of an auction that an owner holds."""

BuyingProtocol = Literal[
    "posted", "bargain", "tender", "english", "dutch", "first-price", "vickrey", "share"
]
"""How processors are bought: in a negotiation, or in the auctions of an owner."""

AUCTIONS: tuple[AuctionRule, ...] = get_args(AuctionRule)
"""Rules of auctions."""

TRADE_PATIENCE = 30.0
"""Seconds for which a buyer negotiates, unless told otherwise."""

FLOOR = 0.8
"""Share of the posted price down to which an owner bargains, unless told otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuyingRules:
    """
    Rules by which processors of a site are bought.

    Parameters
    ----------
    market
        How the price is found.
    reserve_price
        Most that is paid in bargaining or bid in auctions, currency units per processor-second;
        None: the posted price.
    patience
        Seconds for which a purchase is negotiated, or within which an auction must close. Positive.
    floor
        Share of the posted price down to which an owner inside a run bargains, 0 to 1; a service
        has a floor of its own.
    agreement
        Agreement with the site that was made before, of which alone a run has processors there;
        empty: a run buys by itself.
    gives_back
        Whether a run gives that agreement back when the run has ended.

    Raises
    ------
    ValueError
        When a value is out of range.
    """

    market: BuyingProtocol = "posted"
    reserve_price: float | None = None
    patience: float = TRADE_PATIENCE
    floor: float = FLOOR
    agreement: str = ""
    gives_back: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.patience < math.inf:
            raise ValueError(f"patience must be positive, got {self.patience:g}")
        if not 0 <= self.floor <= 1:
            raise ValueError(f"floor must be 0 to 1, got {self.floor:g}")
        if self.reserve_price is not None and not 0 <= self.reserve_price < math.inf:
            raise ValueError(f"reserve_price must not be negative, got {self.reserve_price:g}")

    @property
    def negotiates(self) -> bool:
        """Whether a purchase is more than the acceptance of the posted price."""
        return self.market != "posted"

    def planned(self, posted: float) -> float:
        """
        Return the price that a purchase is planned with: the most that it can come to.

        Parameters
        ----------
        posted
            Posted price, currency units per processor-second.
        """
        if self.market not in ("posted", "tender") and self.reserve_price is not None:
            return min(posted, self.reserve_price)
        return posted

    @property
    def negotiated(self) -> NegotiatedMarket:
        """How a price is found with an owner who holds no auctions."""
        return (
            "bargain"
            if self.market == "bargain"
            else ("tender" if self.market == "tender" else "posted")
        )

    @property
    def auction(self) -> AuctionRule | None:
        """Rule of the auctions in which processors are bought; None: they are not."""
        return next((rule for rule in AUCTIONS if rule == self.market), None)


# Facts of a site that offers processors.


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundLoad:
    """
    Describes the background jobs of a simulated cluster.

    Parameters
    ----------
    trace
        File of the log; None: it has none.
    at
        Moment of the log at which the simulation begins, seconds on its clock; None: its middle.
    policy
        Policy of the scheduler: ``"fcfs"``, ``"easy"`` or ``"conservative"``.
    early
        Whether waiting jobs move up (``"compress"``) or stay where they are (``"keep"``)
        when one ends early.
    looseness
        Time that jobs ask for, relative to their run time; None: the time asked for in the log.
    """

    trace: str | None = None
    at: float | None = None
    policy: str = "conservative"
    early: str = "keep"
    looseness: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteFacts:
    """
    Everything that a run knows of a site: size, speed, price and how it is reached.

    Parameters
    ----------
    name
        Unique among the sites of a run.
    kind
        Which implementation of the Site protocol provides it: ``"local"``, ``"batch"``,
        ``"remote"``, ``"dask"``, ``"ssh"``, ``"cloud"``, ``"advertised"`` or
        ``"simulated"``.
    processors
        How many it offers. Positive.
    speed
        Work per second relative to the machine the runtime estimates hold
        for: a task of runtime r takes r / speed here. Positive.
    unit_price
        Currency units per processor-second; None when unknown.
    fixed_price
        Currency units per slot bought; None when unknown.
    currency
        Currency of both prices.
    exchange
        Rate by which the prices were changed into that currency; None: they are as the site states.
    memory
        Bytes; None when unknown.
    slots
        Slots that the site advertises; None: all processors for lease, from 0 on, without end.
    background
        Background jobs of a simulated cluster.
    links
        How data pass from here to other sites, by their names. Sites without a
        link between them share their files.
    pricing
        The owner's policy, where prices change; the unit price is then its base.
    groups
        Groups of customers among which the owner counts the buyer.
    resources
        Countable ones by name, such as licences and GPUs, that tasks hold: how many it has.
    attributes
        Further ones that it publishes, by name, for requirements and ranks.
    storage
        Folder or URL where files that many tasks share are kept; None: it has none.
    storage_limit
        Bytes that files brought there may take; None: as many as there are.
    storage_rate
        Bytes per second at which tasks read from there; None: it takes no time.
    batch
        Batch scheduler of the site, where the site has a real one.
    acquiring
        How a pool acquires and releases its processors.
    dask
        The Dask cluster that it is, where it is one.
    remote
        The other Bursar that it is, where it is one.
    buying
        How its processors are bought.
    ssh
        Its machines, where they are plain ones that are reached by ssh.
    cloud
        The cloud that it is, where it is one.
    shared
        Whether runs at the same time divide its processors fairly, where it is local; else a run
        that comes later waits until the processors are free. None: where no owner's prices promise
        them to a buyer.
    source
        File that describes it; empty for none. Sites of one name in one file are one site,
        whichever run uses it.
    """

    name: str
    kind: str = "local"
    processors: int = 1
    speed: float = 1.0
    unit_price: float | None = None
    fixed_price: float | None = 0.0
    currency: str = "SU"
    exchange: ExchangeRate | None = None
    memory: int | None = None
    resources: Mapping[str, int] = field(default_factory=dict)
    slots: tuple[Slot, ...] | None = None
    background: BackgroundLoad | None = None
    links: Mapping[str, Link] = field(default_factory=dict)
    pricing: Pricing | None = None
    groups: frozenset[str] = frozenset()
    attributes: Mapping[str, Fact] = field(default_factory=dict)
    storage: str | None = None
    storage_limit: int | None = None
    storage_rate: float | None = None
    batch: BatchScheduler | None = None
    acquiring: AcquisitionPolicy = field(default_factory=AcquisitionPolicy)
    dask: DaskEndpoint | None = None
    remote: RemoteEndpoint | None = None
    buying: BuyingRules = field(default_factory=BuyingRules)
    ssh: SshHosts | None = None
    cloud: CloudEndpoint | None = None
    shared: bool | None = None
    source: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("name must not be empty")
        if self.processors < 1:
            raise ValueError(f"processors must be at least 1, got {self.processors}")
        if not (0 < self.speed < math.inf):
            raise ValueError(f"speed must be positive, got {self.speed}")
        check_currency(self.currency)
        for what, price in (("unit_price", self.unit_price), ("fixed_price", self.fixed_price)):
            if price is not None and not (0 <= price < math.inf):
                raise ValueError(f"{what} must not be negative, got {price}")
        for slot in self.slots or ():
            if slot.site != self.name:
                raise ValueError(f'a slot of "{slot.site}" is not one of "{self.name}"')

    @property
    def data_prices(self) -> DataPrices | None:
        """Prices of what tasks bring there and send back; None: that costs nothing."""
        return None if self.cloud is None else self.cloud.data_prices

    @property
    def is_shared(self) -> bool:
        """Whether others' jobs run there: processors then come through a queue, for a time."""
        has_jobs = self.background is not None and self.background.trace is not None
        return has_jobs or self.batch is not None or self.remote is not None

    @property
    def sends_pickles(self) -> bool:
        """
        Whether results of Python calls come back from there as pickles, and are loaded.

        So it is where workers are processes of the user's own on this machine, where the sites
        file says so, and with Dask, whose own protocol loads pickles whatever we do.
        """
        if self.remote is not None:
            return self.remote.trust == "pickle"
        return self.kind == "local" or self.dask is not None

    @property
    def added(self) -> float:
        """Seconds that the site adds to the time that tasks ask for, in which workers start."""
        return STARTING if self.batch is not None or self.remote is not None else 0.0

    @property
    def unwatched(self) -> float:
        """
        Seconds for which processors may be held, and charged, once a killed run watches them no
        more: pilots in a batch queue look for their run for a while, as those of a cloud do, and
        others end with it.
        """
        if self.cloud is not None:
            return self.cloud.unwatched
        return 0.0 if self.batch is None else PATIENCE + ENDING

    def delay_to(self, target: str, parent: Task, child: Task) -> float:
        """
        Return seconds from a task's end here until a child has the files at another site.

        Nothing where the sites share their files, or are one; otherwise the latency of
        the link, and the time it takes what the child reads of the parent's outputs.
        """
        if self.name == target or target not in self.links:
            return 0.0
        wanted = {file.name for file in child.inputs}
        passed = sum(file.size or 0 for file in parent.outputs if file.name in wanted)
        link = self.links[target]
        return link.latency + passed / link.bandwidth

    @property
    def is_divided(self) -> bool:
        """
        Whether runs divide its processors; not where an owner's prices promise some to a buyer.

        Where processors cost something, each run pays for those that it has.
        """
        return self.kind == "local" and self.pricing is None and self.shared is not False

    @property
    def offers(self) -> tuple[Slot, ...]:
        """Return the slots on sale; without stated ones, all processors at any time as a lease."""
        if self.slots is not None:
            return self.slots
        return (
            Slot(
                site=self.name,
                start=0.0,
                duration=math.inf,
                processors=self.processors,
                unit_price=self.unit_price,
                fixed_price=self.fixed_price,
                leased=True,
            ),
        )


def with_market(site: SiteFacts, market: BuyingProtocol) -> SiteFacts:
    """
    Return a site whose processors are bought in another way.

    Sites that are known by their slots only, and those without a price, stay as they are. So do
    all but other Bursars where the market is an auction.

    Raises
    ------
    ValueError
        When the site has a fixed price, and its owner in a sites file is to be bargained with.
    """
    if site.remote is None and (site.unit_price is None or site.kind == "advertised"):
        return site
    if (site.remote is None and market in AUCTIONS) or site.buying.agreement:
        return site
    reserve = site.buying.reserve_price if market not in ("posted", "tender") else None
    buying = replace(site.buying, market=market, reserve_price=reserve)
    if site.remote is not None or not buying.negotiates:
        return replace(site, buying=buying)
    if market == "bargain" and site.fixed_price:
        raise ValueError(
            f"{site.name} has a fixed price, which is no part of what is bargained for"
        )
    return replace(site, buying=buying, pricing=site.pricing or Pricing(site.unit_price or 0.0))
