"""
Keeps a run's ledger: double-entry accounts in integer micro-units.

Accounts
--------
``owner``
    The outside world that grants the budget; the only account below zero.
``budget``
    What is granted and neither held nor spent.
``held:<lease>``
    Set aside for a lease.
``site:<name>``
    What a site has been paid.

The rows are the ledger; balances follow from them. Every row takes from one
account what it gives another, so the balances always sum to zero.
"""

from collections.abc import Iterable

from bursar.model.errors import InputError
from bursar.model.money import Micros, Refusal, Transfer

OWNER = "owner"
WALLET = "budget"


_HELD, _PAID = "held:", "site:"


def held_for(lease: str) -> str:
    """Return the account of what is set aside for a lease."""
    return f"{_HELD}{lease}"


def paid_to(site: str) -> str:
    """Return the account of what a site has been paid."""
    return f"{_PAID}{site}"


class Ledger:
    """
    Keeps rows, and the balances that follow from the rows.

    Parameters
    ----------
    rows
        Transfers to start from, in the order they were made; empty for a new ledger.

    Raises
    ------
    InputError
        When a row would overdraw an account: rows are missing, or out of order.
    """

    def __init__(self, rows: Iterable[Transfer] = ()) -> None:
        self._rows: list[Transfer] = []
        self._balances: dict[str, Micros] = {}
        self._held = self._spent = 0
        for row in rows:
            # Replay refuses what the operations below would have refused: a journal that lost rows
            # shows here.
            if row.source != OWNER and self.balance(row.source) < row.amount:
                raise InputError(
                    f'transfer of {row.amount} from "{row.source}", '
                    f"which holds {self.balance(row.source)}",
                    where=f"ledger row {len(self._rows) + 1}",
                )
            self._post(row)

    @property
    def rows(self) -> tuple[Transfer, ...]:
        """Every transfer, in the order made."""
        return tuple(self._rows)

    def rows_from(self, index: int) -> tuple[Transfer, ...]:
        """Return the transfers from number ``index`` on, counted from 0."""
        return tuple(self._rows[index:])

    def __len__(self) -> int:
        return len(self._rows)

    def balance(self, account: str) -> Micros:
        """Return the balance of an account; 0 for one never used."""
        return self._balances.get(account, 0)

    @property
    def balances(self) -> dict[str, Micros]:
        """Balances of every account ever used, in order of first use."""
        return dict(self._balances)

    @property
    def funded(self) -> Micros:
        """Sum that the owner has granted so far, micro-units."""
        return -self.balance(OWNER)

    @property
    def free(self) -> Micros:
        """Sum that is granted and neither held nor spent, micro-units."""
        return self.balance(WALLET)

    @property
    def held(self) -> Micros:
        """Sum that is set aside for all leases, micro-units."""
        return self._held

    @property
    def spent(self) -> Micros:
        """Sum that sites have been paid, micro-units."""
        return self._spent

    def settled(self) -> dict[str, Micros]:
        """Payments to the site for each lease, micro-units."""
        paid: dict[str, Micros] = {}
        for row in self._rows:
            if row.kind == "settle":
                paid[row.lease] = paid.get(row.lease, 0) + row.amount
        return paid

    def fund(self, time: float, amount: Micros, memo: str = "") -> Transfer:
        """Add ``amount`` to the budget."""
        return self._move(time, OWNER, WALLET, amount, "fund", "", memo)

    def withdraw(self, time: float, amount: Micros, memo: str = "") -> Transfer | Refusal:
        """Take ``amount`` back from what is free."""
        if amount > self.free:
            return Refusal(f"{amount} micro-units asked back, {self.free} are free", final=False)
        return self._move(time, WALLET, OWNER, amount, "fund", "", memo)

    def hold(self, time: float, lease: str, amount: Micros, memo: str = "") -> Transfer | Refusal:
        """Set ``amount`` aside for a lease; refuse when less is free."""
        if amount > self.free:
            return Refusal(f"{amount} micro-units to hold, {self.free} are free", final=False)
        return self._move(time, WALLET, held_for(lease), amount, "hold", lease, memo)

    def release(
        self, time: float, lease: str, amount: Micros, memo: str = ""
    ) -> Transfer | Refusal:
        """Return ``amount`` of a lease's hold to the budget; refuse when less is held."""
        if amount > self.balance(held_for(lease)):
            return self._too_little_held(lease, amount)
        return self._move(time, held_for(lease), WALLET, amount, "release", lease, memo)

    def settle(
        self, time: float, lease: str, site: str, amount: Micros, memo: str = ""
    ) -> Transfer | Refusal:
        """Pay a site out of a lease's hold; refuse when less is held."""
        if amount > self.balance(held_for(lease)):
            return self._too_little_held(lease, amount)
        return self._move(time, held_for(lease), paid_to(site), amount, "settle", lease, memo)

    def _too_little_held(self, lease: str, amount: Micros) -> Refusal:
        held = self.balance(held_for(lease))
        return Refusal(f"{amount} micro-units asked of {lease}, {held} are held", final=False)

    def _move(
        self,
        time: float,
        source: str,
        target: str,
        amount: Micros,
        kind: str,
        lease: str,
        memo: str,
    ) -> Transfer:
        row = Transfer(
            time=time,
            source=source,
            target=target,
            amount=amount,
            kind=kind,
            lease=lease,
            memo=memo,
        )
        self._post(row)
        return row

    def _post(self, row: Transfer) -> None:
        self._balances[row.source] = self.balance(row.source) - row.amount
        self._balances[row.target] = self.balance(row.target) + row.amount
        # Kept as running sums: the guard asks for them with every task.
        self._held += row.amount * (row.target.startswith(_HELD) - row.source.startswith(_HELD))
        self._spent += row.amount * (row.target.startswith(_PAID) - row.source.startswith(_PAID))
        self._rows.append(row)
