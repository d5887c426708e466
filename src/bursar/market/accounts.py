"""
Accounts of many users and providers: a ledger with accounts to be opened, groups and quotas.

Runs, users and providers come together here; :mod:`bursar.market.ledger` has the accounts,
the rows and the rules that hold for every ledger. Here every operation needs a key, and the
accounts of users and providers must have been opened.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from bursar.market.account_records import (
    BANK,
    BOOK_CHART,
    USER_PREFIX,
    AgreementBalance,
    Kind,
    LedgerAccount,
    SpendingQuota,
    UserBalance,
    period_of,
)
from bursar.market.grants import DatedGrant, DatedGrants, GrantPeriod, parse_grant_period
from bursar.market.ledger import Ledger
from bursar.model.errors import InputError, spelling_hint
from bursar.model.money import Micros, Refusal, Transfer

_END_OF_TIME = 253402300800.0  # the year 10000: no date names what comes then


class Accounts(Ledger):
    """
    Keeps the ledger of many users and providers.

    Parameters
    ----------
    opened, rows
        Accounts and rows to start from, in the order made; empty for a new book.
    on_post
        Called with each new row, before the operation returns; None for none.

    Raises
    ------
    InputError
        When a row could not have been made: rows are missing, out of order or changed.
    """

    def __init__(
        self,
        currency: str = "SU",
        opened: Iterable[LedgerAccount] = (),
        rows: Iterable[Transfer] = (),
        on_post: Callable[[Transfer], None] | None = None,
    ) -> None:
        super().__init__(chart=BOOK_CHART, currency=currency, on_post=on_post)
        self._accounts: dict[str, LedgerAccount] = {}
        self._balances[BANK] = 0
        self._users: dict[str, UserBalance] = {}  # by the name of their account in rows
        self._dated: dict[str, DatedGrants] = {}  # of the users who have any
        for account in opened:
            Accounts.open_account(self, account)
        for row in rows:
            self._replay(row)

    @property
    def accounts(self) -> Mapping[str, LedgerAccount]:
        """Users and providers by name, in the order opened."""
        return MappingProxyType(self._accounts)

    def held_by(self, user: str) -> Micros:
        """Return the sum of holds of a user's agreements."""
        found = self._users.get(USER_PREFIX + user)
        return 0 if found is None else found.held

    def spent_by(self, user: str) -> Micros:
        """Return the sum that a user has paid and was not refunded."""
        found = self._users.get(USER_PREFIX + user)
        return 0 if found is None else found.spent

    def used(self, user: str, now: float) -> Micros:
        """Return what counts against a user's quota in the period of ``now``; 0 without a quota."""
        found = self._users.get(USER_PREFIX + user)
        if found is None or found.account.quota is None:
            return 0
        return found.used.get(period_of(found.account.quota.per, now), 0)

    def available(self, user: str, now: float) -> Micros:
        """
        Return the most that an agreement first held at a moment may set aside, micro-units.

        That is the user's balance, without grants whose period is another, or what the quota
        leaves in that moment's period if less.
        """
        found = self._users.get(USER_PREFIX + user)
        if found is None:
            return 0
        balance = self._usable(USER_PREFIX + user, now)
        quota = found.account.quota
        if quota is None:
            return balance
        return max(0, min(balance, quota.amount - self.used(user, now)))

    def is_one_period(self, user: str, one: float, other: float) -> bool:
        """Return whether two moments are in the same period of a user's quota."""
        found = self._users.get(USER_PREFIX + user)
        quota = None if found is None else found.account.quota
        return quota is None or period_of(quota.per, one) == period_of(quota.per, other)

    def known(self, name: str, kind: Kind | None = None) -> LedgerAccount:
        """
        Return the account with a name.

        Raises
        ------
        InputError
            When there is none, or it is of another kind.
        """
        account = self._accounts.get(name)
        if account is None:
            hint = spelling_hint(name, self._accounts)
            raise InputError(f'no account "{name}"', hint=hint)
        if kind is not None and account.kind != kind:
            raise InputError(f'"{name}" is a {account.kind}, expected a {kind}')
        return account

    def open_account(self, account: LedgerAccount) -> LedgerAccount | Refusal:
        """Open an account; do nothing when the same account is open already."""
        # Asked twice, as after a crash before the answer: the same account is no error.
        found = self._accounts.get(account.name)
        if found is not None:
            return found if found == account else _no(f'there is an account "{account.name}"')
        self._put(account)
        self._balances[account.id] = 0
        return account

    def set_quota(self, user: str, quota: SpendingQuota | None) -> LedgerAccount | Refusal:
        """Give a user another quota; agreements above the new one stay."""
        found = self._users.get(USER_PREFIX + user)
        if found is None:
            return self._unknown(USER_PREFIX + user)
        group = found.account.group
        account = LedgerAccount(name=user, kind="user", group=group, quota=quota)
        self._put(account)
        return account

    def grant(
        self,
        now: float,
        key: str,
        payer: str,
        amount: Micros,
        *,
        memo: str = "",
        period: GrantPeriod | None = None,
    ) -> Transfer | Refusal:
        """Add to what a user may spend, for ever or in a period."""
        within = "" if period is None else str(period)
        target = USER_PREFIX + payer
        return self._post(now, key, "grant", BANK, target, amount, within, memo)

    def grants(self, user: str) -> tuple[DatedGrant, ...]:
        """Return a user's grants that have a period, the one that ends first, first."""
        dated = self._dated.get(USER_PREFIX + user)
        return () if dated is None else dated.grants

    def lapse(self, now: float) -> list[Transfer]:
        """Give the bank back what is left of grants that have ended, and return the rows."""
        rows = []
        for user, dated in self._dated.items():
            for grant in dated.due(now):
                key = f"lapse {len(self._rows) + 1} {grant.key}"
                row = self._post(now, key, "lapse", user, BANK, grant.left, grant.key, grant.memo)
                assert isinstance(row, Transfer), row
                rows.append(row)
        return rows

    def transfer(
        self, now: float, key: str, giver: str, taker: str, amount: Micros, *, memo: str = ""
    ) -> Transfer | Refusal:
        """Move money without an end from a user to another user of the same group."""
        source, target = USER_PREFIX + giver, USER_PREFIX + taker
        return self._post(now, key, "transfer", source, target, amount, "", memo)

    # Inside.

    def _policy(
        self,
        now: float,
        key: str,
        kind: str,
        source: str,
        target: str,
        amount: Micros,
        found: AgreementBalance | None,
    ) -> Refusal | None:
        """Return why a movement is refused: unknown accounts, other groups, or over the quota."""
        if not key:
            return _no("a key must be printable and not empty, a memo one printable line")
        if not 0 <= now < _END_OF_TIME:
            return _no(f"a moment must be in seconds since the epoch, got {now}")
        if source not in self._balances:
            return self._unknown(source)
        if source in self._dated and kind in ("hold", "transfer"):
            refusal = self._not_usable(source, now, kind, amount)
            if refusal is not None:
                return refusal
        if kind == "hold":
            user = self._users[source]
            quota = user.account.quota
            if quota is None:
                return None
            # An agreement counts in the period in which it was first held: topping it up in a later
            # month must not count anew.
            period = period_of(quota.per, now if found is None else found.since)
            over = user.used.get(period, 0) + amount - quota.amount
            return None if over <= 0 else self._over_quota(user.account.name, quota, over)
        if target not in self._balances:
            return self._unknown(target)
        if kind == "transfer":
            giver, taker = self._users[source].account, self._users[target].account
            if giver is taker:
                return _no(f"{giver.name} cannot transfer to themselves")
            if not giver.group or giver.group != taker.group:
                return _no(f"{giver.name} and {taker.name} are not of one group")
        return None

    def _usable(self, account: str, now: float) -> Micros:
        """Return the part of a user's balance that an agreement may hold at a moment."""
        balance = self._balances[account]
        dated = self._dated.get(account)
        return balance if dated is None else balance - dated.left + dated.usable(now)

    def _not_usable(self, account: str, now: float, kind: str, amount: Micros) -> Refusal | None:
        """Return why a movement takes what grants do not allow; None: it does not."""
        dated = self._dated[account]
        if kind == "transfer":  # else the taker could spend it after the end
            usable = self._balances[account] - dated.left
            said = "has no end and may be given away"
        else:
            usable = self._usable(account, now)
            said = "may be spent at this time"
        if amount <= usable:
            return None
        have = f"{self._format(usable)} of {self._format(self._balances[account])}"
        return Refusal(f"{account} has {have} that {said}, {self._format(amount)} asked", False)

    def _over_quota(self, user: str, quota: SpendingQuota, over: Micros) -> Refusal:
        per = "in all" if quota.per == "all" else f"per {quota.per}"
        return Refusal(
            f"{self._format(over)} over the quota of {user}, {self._format(quota.amount)} {per}",
            final=False,
        )

    def _note(self, row: Transfer) -> AgreementBalance:
        """Count a row in the user's sum of holds, and in the quota's period, too."""
        agreement = super()._note(row)
        amount, kind, user = row.amount, row.kind, self._users[agreement.payer]
        if kind == "hold":
            user.held += amount
            user.use(agreement.since, amount)
        elif kind == "settle":
            # What is paid counts on in the period in which it was held.
            user.held -= amount
            user.spent += amount
        elif kind == "release":
            user.held -= amount
            user.use(agreement.since, -amount)
        else:
            user.spent -= amount
            user.use(agreement.since, -amount)
        if self._dated and (dated := self._dated.get(agreement.payer)) is not None:
            dated.follow(row)
        return agreement

    def _note_grant(self, row: Transfer) -> None:
        """Follow grants that have a period."""
        if row.kind == "grant" and row.agreement:
            self._dated.setdefault(row.target, DatedGrants()).follow(row)
        elif row.kind == "lapse":
            self._dated[row.source].follow(row)

    def _fault_of(self, row: Transfer) -> str:
        fault = super()._fault_of(row)
        if not fault and row.source in self._dated and row.kind in ("hold", "transfer"):
            refusal = self._not_usable(row.source, row.time, row.kind, row.amount)
            return "" if refusal is None else refusal.reason
        return fault

    def _other_fault(self, row: Transfer) -> str:
        if row.kind == "grant" and row.agreement:
            if parse_grant_period(row.agreement) is None:
                return f'names no period of a grant: "{row.agreement}"'
            return ""
        if row.kind == "lapse":
            dated = self._dated.get(row.source)
            grant = None if dated is None else dated.find(row.agreement)
            if grant is None:
                return f'no grant "{row.agreement}" of {row.source}'
            if row.time < grant.period.end or row.amount > grant.left:
                return f'takes back what is not over of the grant "{row.agreement}"'
            return ""
        return super()._other_fault(row)

    def faults(self) -> list[str]:
        """Return errors in the balances, and of grants with a period; always empty without bugs."""
        found = super().faults()
        for account, dated in self._dated.items():
            if dated.left > self._balances[account]:
                found.append(f"{account} has less than is left of its grants")
            found += [
                f'the grant "{grant.key}" has impossible sums'
                for grant in dated.grants
                if not 0 <= grant.left <= grant.unpaid <= grant.granted - grant.lapsed
            ]
        return found

    def _put(self, account: LedgerAccount) -> None:
        """Enter an account, and recount the use of the account's agreements under the new quota."""
        self._accounts[account.name] = account
        if account.kind == "user":
            user = self._users.setdefault(account.id, UserBalance(account))
            user.account = account
            # Periods of the old quota mean nothing under the new one.
            user.used.clear()
            if account.quota is not None:
                for agreement in self._agreements.values():
                    if agreement.payer == account.id:
                        # What was set aside counts until released: a hold that is still open may
                        # all be spent.
                        net = agreement.held + agreement.paid - agreement.refunded
                        user.use(agreement.since, net)

    def _unknown(self, account: str) -> Refusal:
        kind, _, name = account.partition(":")
        hint = spelling_hint(name, [a.name for a in self._accounts.values() if a.kind == kind])
        return _no(f'no {kind} "{name}"' + (f" ({hint})" if hint else ""))


def _no(reason: str) -> Refusal:
    return Refusal(reason, final=True)
