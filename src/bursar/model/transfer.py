"""One movement of money between two accounts."""

import msgspec

from bursar.model.money import Micros


class Transfer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    A double entry: ``amount`` leaves ``source`` and enters ``target``.

    Parameters
    ----------
    time
        Seconds since the epoch.
    source, target
        Accounts, as ``"budget"``, ``"held:lease-1"``, ``"site:local"``.
    amount
        Micro-units. Positive.
    kind
        ``"fund"``, ``"hold"``, ``"release"`` or ``"settle"``.
    lease
        The lease it belongs to; empty for none.
    memo
        One line for people.
    """

    time: float
    source: str
    target: str
    amount: Micros
    kind: str
    lease: str = ""
    memo: str = ""

    def __post_init__(self) -> None:
        if self.amount <= 0:
            raise ValueError(f"amount must be positive, got {self.amount}")
        if self.source == self.target:
            raise ValueError(f'a transfer needs two accounts, got "{self.source}" twice')
