"""Records of a ledger of many users and providers: rows, accounts, quotas and sums."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import gmtime
from typing import Literal

import msgspec

from bursar.model.money import Micros

BANK = "bank"


LARGEST = 2**63 - 1
"""Largest amount of one row, micro-units: the ledger file holds it in 64 bits."""


Kind = Literal["user", "provider"]


Per = Literal["all", "year", "month", "day"]
"""Period over which a quota counts, in UTC; ``"all"``: for ever."""


USER_PREFIX = "user:"


PROVIDER_PREFIX = "provider:"


HELD_PREFIX = "held:"


PERIOD_PARTS: Mapping[Per, int] = {"all": 0, "year": 1, "month": 2, "day": 3}


class LedgerRow(msgspec.Struct, frozen=True, gc=False):
    """
    A double entry by which ``amount`` leaves ``source`` and enters ``target``.

    Parameters
    ----------
    number
        Position in the ledger, from 1.
    time
        Seconds since the epoch.
    key
        Idempotency key of the operation; unique in a ledger.
    kind
        ``"grant"``, ``"transfer"``, ``"hold"``, ``"release"``, ``"settle"`` or ``"refund"``.
    source, target
        Accounts from and to which the amount moves.
    amount
        Micro-units. Positive.
    agreement
        Agreement that the amount belongs to; empty for none.
    memo
        One line for people.
    """

    number: int
    time: float
    key: str
    kind: str
    source: str
    target: str
    amount: Micros
    agreement: str = ""
    memo: str = ""


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
    kind
        Whether the account is a user's or a provider's.
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
class AgreementBalance:
    """
    Holds the sums of an agreement's payments and holds.

    Parameters
    ----------
    user, provider
        Parties of the agreement; the provider is empty before the first payment.
    since
        When something was first held for the agreement, seconds since the epoch.
    held, paid, refunded
        Amounts set aside now, paid so far, and refunded of what was paid, micro-units.
    """

    user: str
    since: float
    provider: str = ""
    held: Micros = 0
    paid: Micros = 0
    refunded: Micros = 0


@dataclass(slots=True, eq=False)
class UserBalance:
    """Holds a user's sum of holds, and the sum used in each period."""

    account: LedgerAccount
    held: Micros = 0
    used: dict[tuple[int, ...], Micros] = field(default_factory=dict)

    def use(self, since: float, amount: Micros) -> None:
        if self.account.quota is not None:
            period = period_of(self.account.quota.per, since)
            self.used[period] = self.used.get(period, 0) + amount


def matches_agreement(row: LedgerRow, found: AgreementBalance | None) -> bool:
    """Return whether a row moves money between the accounts of the agreement that the row names.

    The agreement is as it stood before the row; None when the row is its first.
    """
    if row.kind in ("grant", "transfer"):
        return not row.agreement
    if found is None:
        return row.kind == "hold" and row.target == HELD_PREFIX + row.agreement != HELD_PREFIX
    held, user, provider = (
        HELD_PREFIX + row.agreement,
        USER_PREFIX + found.user,
        PROVIDER_PREFIX + found.provider,
    )
    return (row.source, row.target) in {
        "hold": [(user, held)],
        "release": [(held, user)],
        "settle": [(held, provider if found.provider else row.target)],
        "refund": [(provider, user)],
    }[row.kind]


def period_of(per: Per, moment: float) -> tuple[int, ...]:
    """Return a moment's period: the year, with the month and day where the period is shorter."""
    parts = PERIOD_PARTS[per]
    return gmtime(moment)[:parts] if parts else ()
