"""Names of a ledger's accounts, and records of users, providers, agreements and quotas."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import gmtime
from typing import Literal

import msgspec

from bursar.model.money import Micros

LARGEST = 2**63 - 1
"""Largest amount of one row, micro-units: files hold it in 64 bits."""

HELD_PREFIX = "held:"
"""Beginning of the name of each account that holds what is set aside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartOfAccounts:
    """
    Names the accounts of a ledger, and the movements between them.

    Parameters
    ----------
    outside
        Account of the outside world, the only one that may be below zero.
    payer, payee
        Beginnings of the names of accounts that pay, and that are paid.
    grant
        Kind of the rows by which the outside world grants.
    kinds
        Kinds of rows, each with the beginnings of the names of its source and target; more
        than one pair where a kind goes both ways.
    strict
        Whether payers and payees must be opened before they are used, and each row needs a key.
    """

    outside: str
    payer: str
    payee: str
    grant: str
    kinds: Mapping[str, tuple[tuple[str, str], ...]]
    strict: bool = False


OWNER, WALLET = "owner", "budget"
BANK, USER_PREFIX, PROVIDER_PREFIX = "bank", "user:", "provider:"

RUN_CHART = ChartOfAccounts(
    outside=OWNER,
    payer=WALLET,
    payee="site:",
    grant="fund",
    kinds={
        "fund": ((OWNER, WALLET), (WALLET, OWNER)),
        "hold": ((WALLET, HELD_PREFIX),),
        "release": ((HELD_PREFIX, WALLET),),
        "settle": ((HELD_PREFIX, "site:"),),
    },
)
"""A run: one budget, which its owner may also lower; sites need no account to be paid."""

BOOK_CHART = ChartOfAccounts(
    outside=BANK,
    payer=USER_PREFIX,
    payee=PROVIDER_PREFIX,
    grant="grant",
    kinds={
        "grant": ((BANK, USER_PREFIX),),
        "lapse": ((USER_PREFIX, BANK),),
        "transfer": ((USER_PREFIX, USER_PREFIX),),
        "hold": ((USER_PREFIX, HELD_PREFIX),),
        "release": ((HELD_PREFIX, USER_PREFIX),),
        "settle": ((HELD_PREFIX, PROVIDER_PREFIX),),
        "refund": ((PROVIDER_PREFIX, USER_PREFIX),),
    },
    strict=True,
)
"""Many users and providers; a bank takes back only what is left of a grant after its end."""


def held_for(agreement: str) -> str:
    """Return the account of what is set aside for an agreement or a lease."""
    return HELD_PREFIX + agreement


def paid_to(site: str) -> str:
    """Return a run's account of what a site has been paid."""
    return RUN_CHART.payee + site


class AgreementBalance(msgspec.Struct, gc=False, eq=False):
    """
    Holds the sums of one agreement, or of one lease of a run.

    Parameters
    ----------
    payer, payee
        Accounts that pay and that are paid; the payee is empty before the first payment.
    since
        When something was first held for the agreement, seconds since the epoch.
    held, paid, refunded
        Amounts set aside now, paid so far, and refunded of what was paid, micro-units.
    """

    payer: str
    since: float
    payee: str = ""
    held: Micros = 0
    paid: Micros = 0
    refunded: Micros = 0

    @property
    def user(self) -> str:
        """Name of the user who pays, in a book or service."""
        return self.payer.partition(":")[2]

    @property
    def provider(self) -> str:
        """Name of the provider who is paid, in a book or service; empty for none yet."""
        return self.payee.partition(":")[2]


Kind = Literal["user", "provider"]


Per = Literal["all", "year", "month", "day"]
"""Period over which a quota counts, in UTC; ``"all"``: for ever."""


PERIOD_PARTS: Mapping[Per, int] = {"all": 0, "year": 1, "month": 2, "day": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendingQuota:
    """
    Limits the sum of a user's agreements in a period.

    An agreement counts, with all that is held for it or paid and not refunded,
    in the period in which it was first held.

    Parameters
    ----------
    amount
        Micro-units. Not negative.
    per
        Period over which the agreements are summed.
    """

    amount: Micros
    per: Per = "all"

    def __post_init__(self) -> None:
        if not 0 <= self.amount <= LARGEST:
            raise ValueError(f"a quota must be between 0 and 2^63, got {self.amount}")
        if self.per not in PERIOD_PARTS:
            raise ValueError(f"a quota is per {', '.join(PERIOD_PARTS)}, got {self.per}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerAccount:
    """
    The account of a user or a provider.

    Parameters
    ----------
    name
        Unique among users and providers.
    group
        Users of one group may transfer to each other; empty for none.
    quota
        Limit on what the user spends in a period; None for none.
    """

    name: str
    kind: Kind = "user"
    group: str = ""
    quota: SpendingQuota | None = None

    def __post_init__(self) -> None:
        if not self.name.strip() or not (self.name + self.group).isprintable():
            raise ValueError(f"name and group must be printable, the name not empty: {self.name!r}")
        if self.kind not in ("user", "provider"):
            raise ValueError(f'kind must be "user" or "provider", got "{self.kind}"')
        if self.kind == "provider" and (self.quota or self.group):
            raise ValueError("a provider has no group and no quota")

    @property
    def id(self) -> str:
        """Name of the account in rows."""
        return f"{self.kind}:{self.name}"


@dataclass(slots=True, eq=False)
class UserBalance:
    """Holds what a user's agreements hold and have paid, and what is used of each period."""

    account: LedgerAccount
    held: Micros = 0
    spent: Micros = 0
    used: dict[tuple[int, ...], Micros] = field(default_factory=dict)

    def use(self, since: float, amount: Micros) -> None:
        if self.account.quota is not None:
            period = period_of(self.account.quota.per, since)
            self.used[period] = self.used.get(period, 0) + amount


def period_of(per: Per, moment: float) -> tuple[int, ...]:
    """Return a moment's period: the year, with the month and day where the period is shorter."""
    parts = PERIOD_PARTS[per]
    return gmtime(moment)[:parts] if parts else ()
