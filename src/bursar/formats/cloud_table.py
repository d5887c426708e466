"""The table of a cloud in a sites file: the account, the machines, and how they are billed."""

import datetime
import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from bursar.formats.decoding import TomlTable
from bursar.formats.file_text import joined
from bursar.formats.offer_tables import SlotPrices
from bursar.formats.quantities import Amount, DataPrice, Duration, Share, Size
from bursar.formats.site_tables import (
    LeasedSiteTable,
    NotNegative,
    Positive,
    Processors,
    Text,
    check_private,
    existing_file,
)
from bursar.model.cloud import (
    GRACE,
    LISTED,
    START_UP,
    BillingRules,
    CloudEndpoint,
    MachinePrice,
    MachineType,
    PriceSource,
    SpotTerms,
)
from bursar.model.errors import InputError
from bursar.model.money import DataPrices
from bursar.model.site import SiteFacts

_MINIMUM, _UNIT, _START_LIMIT = 60.0, 1.0, 600.0  # seconds

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:+ -]*", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_SECRET = re.compile(r"secret|password|passwd|token|key|credential", re.IGNORECASE)


class SpotTable(TomlTable, frozen=True):
    """Terms on which machines are bought that the provider may take back."""

    ceiling: Annotated[
        Amount, Meta(description='Most that is paid for a machine-hour: 0.2 or "0.2 USD".')
    ]
    price: Annotated[
        Amount | None,
        Meta(description="Price expected for a machine-hour; default: the provider's history."),
    ] = None
    odds: Annotated[
        Share | None,
        Meta(description="Odds that a machine is interrupted within an hour; default: unknown."),
    ] = None
    base: Annotated[
        NotNegative,
        Meta(description="Machines bought on demand before any is bought as spot."),
    ] = 0


class MachineTable(TomlTable, frozen=True):
    """A type of machine that may be bought."""

    type: Annotated[Text, Meta(description="The provider's name of the type.")]
    processors: Annotated[Processors, Meta(description="Processors of one machine.")]
    memory: Annotated[Size | None, Meta(description="Memory of one machine.")] = None
    gpus: Annotated[NotNegative, Meta(description="GPUs of one machine.")] = 0
    most: Annotated[
        Positive, Meta(description="Machines of the type that may be held at a time.")
    ] = 1
    price: Annotated[
        Amount | None,
        Meta(description='Price of a machine-hour: 0.34 or "0.34 USD"; default: unknown.'),
    ] = None
    price_date: Annotated[
        datetime.date | None, Meta(description="Date of the price, such as 2026-11-01.")
    ] = None
    spot: Annotated[
        SpotTable | None, Meta(description="Terms of machines that may be interrupted.")
    ] = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.type):
            raise InputError("expected the provider's name of a type", where="type")
        if self.price_date is not None and self.price is None:
            raise InputError("is the date of a price, and none is given", where="price_date")
        spot = self.spot
        if spot is not None and spot.price is not None and spot.price[0] > spot.ceiling[0]:
            raise InputError("is above the ceiling", where="spot.price")

    @property
    def currencies(self) -> tuple[str, ...]:
        """Currencies that the table's prices name."""
        prices = [self.price]
        if self.spot is not None:
            prices += [self.spot.ceiling, self.spot.price]
        return tuple(price[1] for price in prices if price is not None and price[1])

    def machine(self) -> MachineType:
        """Return the type of machine."""
        date = "" if self.price_date is None else self.price_date.isoformat()
        spot = None
        if self.spot is not None:
            expected = self.spot.price
            spot = SpotTerms(
                ceiling=self.spot.ceiling[0],
                price=None if expected is None else MachinePrice(hourly=expected[0], date=date),
                odds=self.spot.odds,
                base=self.spot.base,
            )
        return MachineType(
            name=self.type,
            processors=self.processors,
            memory=self.memory,
            gpus=self.gpus,
            most=self.most,
            price=None if self.price is None else MachinePrice(hourly=self.price[0], date=date),
            spot=spot,
        )


class CloudSiteTable(LeasedSiteTable, frozen=True, tag="cloud", kw_only=True):
    """A cloud that sells machines."""

    noun: ClassVar[str] = "a cloud"
    site_kind: ClassVar[str] = "cloud"
    needed: ClassVar = {
        "provider": 'expected the name of a provider in apache-libcloud, such as "ec2"',
        "image": "which image do machines start?",
        "machine": "which machines may be bought? expected [[site.NAME.machine]] tables",
    }
    refused: ClassVar = {
        "processors": "each machine table says how many its machines have",
    }

    provider: Annotated[
        Text, Meta(description='Name of the provider in apache-libcloud: "ec2", "openstack", ...')
    ]
    region: Annotated[
        Text | None, Meta(description="Region, in the provider's words; default: the driver's.")
    ] = None
    options: Annotated[
        dict[str, str | int | float | bool],
        Meta(description="Further arguments of the libcloud driver, without secrets."),
    ] = msgspec.field(default_factory=dict)
    key_variable: Annotated[
        Text | None, Meta(description="Environment variable with the access key or user.")
    ] = None
    secret_variable: Annotated[
        Text | None, Meta(description="Environment variable with the secret.")
    ] = None
    credentials_file: Annotated[
        Text | None,
        Meta(description="File of key and secret (TOML), which nobody else may read."),
    ] = None
    image: Annotated[Text, Meta(description="Identity of the image that machines start.")]
    machine: Annotated[
        tuple[MachineTable, ...],
        Meta(description="Types of machine that may be bought.", min_length=1),
    ]
    minimum: Annotated[
        Duration, Meta(description="Time that is paid for a machine at the least; 1 min.")
    ] = _MINIMUM
    billing_unit: Annotated[
        Duration,
        Meta(
            description="Time to which longer ones are rounded up; 1 s.",
            extra_json_schema={"not": {"const": 0}},
        ),
    ] = _UNIT
    start_up: Annotated[
        Duration,
        Meta(description="Time from a purchase until workers take tasks, estimated; 90 s."),
    ] = START_UP
    start_limit: Annotated[
        Duration,
        Meta(description="Time after which a machine without workers is given up; 10 min."),
    ] = _START_LIMIT
    reach: Annotated[
        Text | None,
        Meta(description="Host or address by which machines find this one; default: its name."),
    ] = None
    python: Annotated[
        Text, Meta(description="Interpreter of the image that has Bursar; python3.")
    ] = "python3"
    setup: Annotated[
        tuple[str, ...], Meta(description="Lines of shell that machines run first.")
    ] = ()
    on_notice: Annotated[
        tuple[str, ...],
        Meta(
            description="Lines of shell that a spot machine runs before it is taken back, such as "
            "a checkpoint."
        ),
    ] = ()
    grace: Annotated[
        Duration,
        Meta(description="Time after SIGTERM for tasks whose machine is taken back; 10 s."),
    ] = GRACE
    owner: Annotated[
        Text | None,
        Meta(description="Tag by which machines of ours are found; default: user and host."),
    ] = None
    prices: Annotated[
        tuple[PriceSource, ...],
        Meta(description="Sources of prices, in order; all three.", min_length=1),
    ] = ("provider", "table", "user")
    price_in: Annotated[
        DataPrice | None,
        Meta(description='Price of data that tasks bring to machines: "0.01 USD/GB"; 0.'),
    ] = None
    price_out: Annotated[
        DataPrice | None,
        Meta(description='Price of data that come back from machines: "0.09 USD/GB"; 0.'),
    ] = None
    price_date: Annotated[
        datetime.date | None,
        Meta(description="Date of the prices of data, such as 2026-11-01."),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("unit_price", "fixed_price", "price"):
            if getattr(self, key):
                raise InputError(
                    "machines of a cloud have their own prices",
                    where=key,
                    hint='give each machine table a price, such as price = "0.34 USD"',
                )
        if self.price_date is not None and self.price_in is None and self.price_out is None:
            raise InputError(
                "is the date of price_in and price_out, and neither is given", where="price_date"
            )
        if not self.billing_unit > 0:
            raise InputError("expected a time above 0", where="billing_unit")
        if self.start_limit < self.start_up:
            raise InputError("is shorter than start_up", where="start_limit")
        for key in ("provider", "region", "image", "python", "reach", "owner"):
            value = getattr(self, key) or ""
            # They stand in calls of the provider's API, in tags and in a shell script.
            if not value.isprintable() or value != value.strip():
                raise InputError("expected printable characters", where=key)
        for key in ("setup", "on_notice"):
            for i, line in enumerate(getattr(self, key)):
                if set(line) & set("\n\r\0"):
                    raise InputError("expected single lines", where=joined(key, i))
        self._check_credentials()
        names = [table.type for table in self.machine]
        for i, name in enumerate(names):
            if name in names[:i]:
                raise InputError(f'duplicate type "{name}"', where=f"{joined('machine', i)}.type")

    def _check_credentials(self) -> None:
        for key in self.options:
            if _SECRET.search(key):
                raise InputError(
                    "credentials do not belong in a sites file",
                    where=joined("options", key),
                    hint="name environment variables (key_variable, secret_variable) or a "
                    "credentials_file",
                )
        variables = ("key_variable", "secret_variable")
        for key in variables:
            name = getattr(self, key)
            if name is not None and self.credentials_file is not None:
                raise InputError("expected variables or a credentials_file, not both", where=key)
            # The message does not repeat it: some write the secret itself here.
            if name is not None and not _VARIABLE.fullmatch(name):
                raise InputError("expected the name of an environment variable", where=key)

    def facts(self, name: str, folder: Path) -> SiteFacts:
        found = super().facts(name, folder)
        assert found.cloud is not None
        for i, machine in enumerate(found.cloud.machines):
            # A bid of 1 in another currency would be a bid of 1 USD.
            if machine.spot is not None and found.currency != LISTED:
                raise InputError(
                    f"is bid in {LISTED}, and the site counts in {found.currency}",
                    where=f"{joined('machine', i)}.spot.ceiling",
                )
        return replace(found, unit_price=found.cloud.least_unit_price)

    def own_facts(
        self, name: str, prices: SlotPrices, folder: Path
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        own, currencies = super().own_facts(name, prices, folder)
        named = [currency for table in self.machine for currency in table.currencies]
        data = [price[1] for price in (self.price_in, self.price_out) if price and price[1]]
        return own, (*currencies, *named, *data)

    @property
    def data_prices(self) -> DataPrices | None:
        """Prices of data; None where data cost nothing."""
        into, out = (
            0.0 if price is None else price[0] for price in (self.price_in, self.price_out)
        )
        if not into and not out:
            return None
        date = "" if self.price_date is None else self.price_date.isoformat()
        return DataPrices(into=into, out=out, date=date)

    def endpoint(self, folder: Path) -> dict[str, Any]:
        credentials = existing_file("credentials_file", self.credentials_file, folder)
        if credentials:
            check_private(credentials, "credentials_file")
        endpoint = CloudEndpoint(
            provider=self.provider,
            region=self.region or "",
            options=dict(self.options),
            key_variable=self.key_variable or "",
            secret_variable=self.secret_variable or "",
            credentials_file=credentials,
            image=self.image,
            machines=tuple(table.machine() for table in self.machine),
            billing=BillingRules(minimum=self.minimum, unit=self.billing_unit),
            start_up=self.start_up,
            start_limit=self.start_limit,
            reach=self.reach,
            python=self.python,
            setup=self.setup,
            on_notice=self.on_notice,
            grace=self.grace,
            owner=self.owner or "",
            prices=self.prices,
            data_prices=self.data_prices,
        )
        return {"processors": endpoint.processors, "cloud": endpoint}
