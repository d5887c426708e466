"""The tables of sites: what all kinds have, and sites that this machine or a file provides."""

import math
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from bursar.formats.decoding import TomlTable
from bursar.formats.file_text import joined
from bursar.formats.offer_tables import (
    MOST_PROCESSORS,
    PriceTable,
    SlotPrices,
    SlotTable,
    prices_of,
    read_slots,
)
from bursar.formats.quantities import (
    Amount,
    Bandwidth,
    CurrencyName,
    Duration,
    Price,
    Schema,
    Share,
    Size,
)
from bursar.model.errors import InputError, errors_within
from bursar.model.money import Pricing
from bursar.model.provisioning import Acquisition, AcquisitionPolicy, Release
from bursar.model.site import (
    AUCTIONS,
    FLOOR,
    TRADE_PATIENCE,
    BackgroundLoad,
    BuyingProtocol,
    BuyingRules,
    SiteFacts,
)
from bursar.model.slot import Slot, find_oversubscription, peak_offered_processors

DEFAULT_CURRENCY = "SU"
"""Currency of prices that name none."""

Positive = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[int, Meta(ge=0)]
Processors = Annotated[int, Meta(ge=1, le=MOST_PROCESSORS)]
Text = Annotated[str, Meta(min_length=1)]

_ATTRIBUTE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


class PoolTable(TomlTable, frozen=True):
    """How processors are acquired and released."""

    acquisition: Annotated[
        Acquisition, Meta(description="Policy by which processors are requested.")
    ] = "adaptive"
    fewest: Annotated[
        NotNegative, Meta(description="Processors held at the least, while a campaign runs.")
    ] = 0
    most: Annotated[
        Positive | None,
        Meta(description="Processors held at the most; default: all that the site has."),
    ] = None
    shortest: Annotated[Duration, Meta(description="Least duration of one allocation; 1 min.")] = (
        60.0
    )
    longest: Annotated[Duration, Meta(description="Greatest duration of one allocation; 1 h.")] = (
        3600.0
    )
    trigger: Annotated[
        Positive, Meta(description="Number of waiting tasks from which on more is requested.")
    ] = 1
    release: Annotated[Release, Meta(description="Policy by which processors are released.")] = (
        "adaptive"
    )
    idle: Annotated[Duration, Meta(description="How long a worker idles before it ends; 30 s.")] = (
        30.0
    )
    below: Annotated[
        Positive,
        Meta(description='With release = "queue": release when fewer tasks are queued.'),
    ] = 1
    max_pending: Annotated[
        Positive,
        Meta(description="Greatest number of requests that wait in the site's queue at a time."),
    ] = 64
    max_racing: Annotated[
        NotNegative,
        Meta(description="Greatest number of these that race with requests at other sites."),
    ] = 2
    probe_every: Annotated[
        Duration,
        Meta(description="Time between two queries of an unchanged queue; 30 s."),
    ] = 30.0

    def __post_init__(self) -> None:
        self.policy()

    def policy(self) -> AcquisitionPolicy:
        """
        Return the rules.

        Raises
        ------
        ValueError
            When they contradict each other.
        """
        return AcquisitionPolicy(**msgspec.structs.asdict(self))


class SiteTable(TomlTable, frozen=True, tag_field="kind"):
    """A site. A unit price that is not given is unknown, never 0."""

    site_kind: ClassVar[str]
    """Kind of the site in the model."""

    name: Annotated[
        str | None,
        Meta(description="Name of the site, for [[site]] tables; unique among the sites."),
    ] = None
    speed: Annotated[
        float,
        Meta(
            description="Speed relative to the machine for which the runtime estimates hold.", gt=0
        ),
    ] = 1.0
    unit_price: Annotated[
        Price | None,
        Meta(
            description='Price of use: "0.05 EUR/core-hour", or a number per processor-second; '
            "default: unknown."
        ),
    ] = None
    fixed_price: Annotated[
        Amount | None,
        Meta(description='Price of each slot bought, 2 or "2 EUR"; default: 0.'),
    ] = None
    currency: Annotated[
        CurrencyName | None,
        Meta(description="Currency of all prices that name none; default: SU."),
    ] = None
    memory: Annotated[Size | None, Meta(description="Memory of the site; default: unknown.")] = None
    resources: Annotated[
        dict[Annotated[str, Meta(min_length=1)], Annotated[int, Meta(ge=0)]],
        Meta(description="Countable resources that tasks hold, by name: licences, gpu, ..."),
    ] = msgspec.field(default_factory=dict)
    attributes: Annotated[
        dict[str, str | int | float | bool],
        Meta(description="Further attributes that the site publishes, for requirements and ranks."),
    ] = msgspec.field(default_factory=dict)
    storage: Annotated[
        Text | None,
        Meta(
            description="Where files that many tasks share are kept: a folder, relative to this "
            "file, or a URL."
        ),
    ] = None
    storage_limit: Annotated[
        Size | None, Meta(description="Space for files that are brought there; default: no limit.")
    ] = None
    storage_rate: Annotated[
        Bandwidth | None,
        Meta(description="Rate at which tasks read from there; default: reading takes no time."),
    ] = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.speed):
            raise InputError(f"expected a positive number, got {self.speed}", where="speed")
        self._check_attributes()
        for key in ("storage_limit", "storage_rate"):
            if self.storage is None and getattr(self, key) is not None:
                raise InputError("speaks of a storage, and there is none", where=key)

    def _check_attributes(self) -> None:
        seen: dict[str, str] = {}
        for name, value in self.attributes.items():
            where = joined("attributes", name)
            if not _ATTRIBUTE.fullmatch(name):
                raise InputError("expected a name of letters, digits and _", where=where)
            # ClassAds compare names of attributes without case.
            if name.lower() in seen:
                raise InputError(
                    f'is "{seen[name.lower()]}" already: upper and lower case are one', where=where
                )
            if isinstance(value, float) and not math.isfinite(value):
                raise InputError(f"expected a finite number, got {value}", where=where)
            seen[name.lower()] = name

    def facts(self, name: str, folder: Path) -> SiteFacts:
        """
        Return what the table says of the site.

        Parameters
        ----------
        folder
            Folder that relative paths of the table are relative to.

        Raises
        ------
        InputError
            At the field, when a file is missing or values do not agree.
        """
        prices = prices_of(self.unit_price, self.fixed_price, SlotPrices())
        own, currencies = self.own_facts(name, prices, folder)
        named = dict.fromkeys(c for c in (self.currency, *prices.currencies, *currencies) if c)
        # Amounts of one site are added up without exchange rates.
        if len(named) > 1:
            raise InputError(
                f"names several currencies: {', '.join(named)}; expected one", where="currency"
            )
        storage = self.storage
        if storage is not None and "://" not in storage:
            storage = str(folder / storage)
        return SiteFacts(
            name=name,
            kind=self.site_kind,
            speed=float(self.speed),
            unit_price=prices.unit,
            fixed_price=prices.fixed,
            currency=next(iter(named), DEFAULT_CURRENCY),
            memory=self.memory,
            resources=dict(self.resources),
            attributes=dict(self.attributes),
            storage=storage,
            storage_limit=self.storage_limit,
            storage_rate=self.storage_rate,
            **own,
        )

    def own_facts(
        self, name: str, prices: SlotPrices, folder: Path
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        """
        Return the fields of :class:`SiteFacts` that this kind of site fills, and currencies.

        Raises
        ------
        InputError
            At the field.
        """
        raise NotImplementedError


class LeasedSiteTable(SiteTable, frozen=True):
    """A site whose processors are leased for as long as they are needed."""

    price: Annotated[
        tuple[PriceTable, ...],
        Meta(description="Rules that change the unit price, each by a factor."),
    ] = ()
    pool: Annotated[
        PoolTable | None, Meta(description="How processors are acquired and released there.")
    ] = None
    market: Annotated[
        BuyingProtocol,
        Meta(
            description="How its processors are bought: at the posted price, by bargaining, by a "
            "call for tenders, or in the auctions that another Bursar holds."
        ),
    ] = "posted"
    reserve_price: Annotated[
        Price | None,
        Meta(
            description="Highest price that is paid in bargaining, or bid in auctions; default: "
            "the posted price."
        ),
    ] = None
    market_patience: Annotated[
        Duration,
        Meta(
            description="How long a purchase is negotiated, and how soon an auction must close to "
            "be waited for; 30 s."
        ),
    ] = TRADE_PATIENCE
    floor: Annotated[
        Share | None,
        Meta(
            description="Share of its price down to which an owner in this file bargains; 0.8. "
            "Another Bursar has a floor of its own."
        ),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reserve_price is not None and self.market in ("posted", "tender"):
            raise InputError(
                'goes with market = "bargain" or an auction only', where="reserve_price"
            )
        if self.market in AUCTIONS and self.site_kind != "remote":
            raise InputError(
                "an owner in this file holds no auctions, as nobody else would bid: expected "
                'kind = "remote"',
                where="market",
            )
        if not self.market_patience:
            raise InputError("must be positive", where="market_patience")
        if self.site_kind == "remote" and self.floor is not None:
            raise InputError("is up to the other Bursar", where="floor")
        negotiates = self.market != "posted" and self.site_kind != "remote"
        if negotiates and self.unit_price is None:
            raise InputError("negotiates a unit_price, and none is given", where="market")
        if negotiates and self.market == "bargain" and self.fixed_price is not None:
            raise InputError("is no part of a price that is bargained for", where="fixed_price")
        if not self.price:
            return
        if self.unit_price is None:
            raise InputError("changes a unit_price, and none is given", where="price")
        self._pricing(self.unit_price[0])

    def _pricing(self, base: float) -> Pricing:
        try:
            return Pricing(base, tuple(table.rule() for table in self.price))
        except ValueError as error:
            raise InputError(str(error), where="price") from None

    def own_facts(
        self, name: str, prices: SlotPrices, folder: Path
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        # Whoever negotiates deals with an owner, whose price without rules is the base.
        owned = self.price or (self.market != "posted" and self.site_kind != "remote")
        pricing = self._pricing(prices.unit) if owned and prices.unit is not None else None
        policy = AcquisitionPolicy() if self.pool is None else self.pool.policy()
        reserve, currency = (None, None) if self.reserve_price is None else self.reserve_price
        buying = BuyingRules(
            market=self.market,
            reserve_price=reserve,
            patience=self.market_patience,
            floor=FLOOR if self.floor is None else self.floor,
        )
        own = {"pricing": pricing, "acquiring": policy, "buying": buying}
        named = () if currency is None else (currency,)
        return {**own, **self.endpoint(folder)}, named

    def endpoint(self, folder: Path) -> dict[str, Any]:
        """
        Return the number of processors, and how they are reached.

        Raises
        ------
        InputError
            At the field.
        """
        raise NotImplementedError


class LocalSiteTable(LeasedSiteTable, frozen=True, tag="local"):
    """Processors of this machine."""

    noun: ClassVar[str] = "a local site"
    kind_by_default: ClassVar[bool] = True
    site_kind: ClassVar[str] = "local"

    processors: Annotated[
        Processors | None,
        Meta(description="Processors that Bursar may use; default: all of this machine."),
    ] = None
    shared: Annotated[
        bool | None,
        Meta(
            description="Whether runs at the same time share the processors fairly; otherwise a "
            "later run waits for an earlier one. Default: they do, unless its prices change."
        ),
    ] = None

    def endpoint(self, folder: Path) -> dict[str, Any]:
        if self.shared and (self.price or self.market != "posted"):
            raise InputError(
                "processors whose prices change or are negotiated are promised to one buyer at a "
                "time, so that runs cannot share them",
                where="shared",
                hint="leave it out, or the prices and the market",
            )
        processors = self.processors or len(os.sched_getaffinity(0))
        return {"processors": processors, "shared": self.shared}


class SimulatedSiteTable(LeasedSiteTable, frozen=True, tag="simulated", kw_only=True):
    """A cluster with jobs of its own."""

    noun: ClassVar[str] = "a simulated site"
    site_kind: ClassVar[str] = "simulated"
    needed: ClassVar = {"processors": "a simulated site needs processors"}

    processors: Annotated[Processors, Meta(description="Number of processors of the cluster.")]
    trace: Annotated[
        Text | None,
        Meta(
            description="Log (SWF, also .gz or .xz) whose jobs the cluster runs besides, relative "
            "to this file; default: no other jobs."
        ),
    ] = None
    at: Annotated[
        Duration | None,
        Meta(description="Moment of the log at which the simulation begins; default: its middle."),
    ] = None
    policy: Annotated[
        Literal["fcfs", "easy", "conservative"],
        Meta(description="Policy of its batch scheduler."),
    ] = "conservative"
    early: Annotated[
        Literal["keep", "compress"],
        Meta(
            description="Whether waiting jobs stay where they are when one ends early, or move up."
        ),
    ] = "keep"
    looseness: Annotated[
        Annotated[float, Meta(ge=1)] | None,
        Meta(
            description="Ratio of the time that the log's jobs ask for to the time that they take; "
            "default: as the log says."
        ),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("at", "looseness"):
            if self.trace is None and getattr(self, key) is not None:
                raise InputError("speaks of a log, and there is no trace", where=key)

    def endpoint(self, folder: Path) -> dict[str, Any]:
        trace = None if self.trace is None else folder / self.trace
        if trace is not None and not trace.is_file():
            raise InputError(f"no file {trace}", where="trace")
        background = BackgroundLoad(
            trace=None if trace is None else str(trace),
            at=self.at,
            policy=self.policy,
            early=self.early,
            looseness=self.looseness,
        )
        return {"processors": self.processors, "background": background}


class AdvertisedSiteTable(SiteTable, frozen=True, tag="advertised"):
    """A site that is known by its slots only, to plan with."""

    noun: ClassVar[str] = "an advertised site"
    site_kind: ClassVar[str] = "advertised"
    refused: ClassVar = {
        "price": "slots have their own prices",
        "pool": "slots are bought as they are offered",
    }
    schema_rules: ClassVar[Schema] = {
        "oneOf": [
            {"required": ["slot"], "properties": {"slot": {"minItems": 1}}},
            {"required": ["slots"]},
        ]
    }

    processors: Annotated[
        Processors | None,
        Meta(description="Number of processors; default: the most that the slots offer at once."),
    ] = None
    slot: Annotated[list[SlotTable] | None, Meta(description="Slots that the site offers.")] = None
    slots: Annotated[Text | None, Meta(description="CSV file of slots, relative to this file.")] = (
        None
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.slot is not None and self.slots is not None:
            raise InputError("expected slot tables or a file of slots, not both", where="slots")
        if not self.slot and self.slots is None:
            raise InputError(
                "an advertised site needs slots",
                hint='give it slot tables, or slots = "slots.csv"',
            )
        if self.slots is not None and not self.slots.isprintable():
            raise InputError("expected the name of a file", where="slots")

    def own_facts(
        self, name: str, prices: SlotPrices, folder: Path
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        slots: list[Slot] = []
        places: list[tuple[str, str]] = []
        currencies: list[str] = []
        for where, label, table in self._offers(folder):
            slot, named = table.slot(name, prices)
            places.append((where, label))
            slots.append(slot)
            currencies += named
        processors = peak_offered_processors(slots) if self.processors is None else self.processors
        crowd = find_oversubscription(slots, processors)
        if crowd is not None:
            moment, numbers = crowd
            latest = max(numbers, key=lambda i: (slots[i].start, i))
            others = [places[i][1] for i in numbers if i != latest]
            more = f" and {len(others) - 4} more" if len(others) > 4 else ""
            together = sum(slots[i].processors for i in numbers)
            what = f"overlaps {', '.join(others[:4])}{more}: " if others else ""
            raise InputError(
                f"{what}from {moment:g} s on {together} processors are offered, the site has "
                f"{processors}",
                where=places[latest][0],
            )
        return {"slots": tuple(slots), "processors": processors}, tuple(currencies)

    def _offers(self, folder: Path) -> Iterator[tuple[str, str, SlotTable]]:
        """Yield the slots, each with the place, and the place in short."""
        if self.slots is None:
            for i, table in enumerate(self.slot or ()):
                yield joined("slot", i), f"slot[{i}]", table
            return
        file = folder / self.slots
        with errors_within("slots"):
            rows = read_slots(file)
        for line, row in rows:
            yield f"slots: {file}:{line}", f"line {line}", row


# Files that a sites file names.


def existing_file(key: str, said: str | None, folder: Path) -> str:
    """Return the absolute path of a file that must exist; empty where none is named."""
    if said is None:
        return ""
    path = folder / Path(said).expanduser()
    if not path.is_file():
        raise InputError(f"no file {path}", where=key)
    return str(path.absolute())


def check_private(path: str, where: str) -> None:
    """Refuse a file that others than its owner may read, write or execute."""
    mode = stat.S_IMODE(os.stat(path).st_mode)
    # Whoever can read the token can spend the user's money at the service.
    if mode & 0o077:
        raise InputError(
            f"{path} may be read by others, its mode is {mode:04o}",
            where=where,
            hint=f"chmod 600 {path}",
        )
