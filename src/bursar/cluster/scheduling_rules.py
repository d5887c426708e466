"""Rules by which a machine starts jobs."""

from dataclasses import dataclass
from typing import Literal, get_args

from bursar.model.errors import InputError, spelling_hint

Policy = Literal["fcfs", "easy", "conservative"]
Semantics = Literal["batch", "pyss"]
Early = Literal["compress", "keep"]
Overrun = Literal["kill", "extend"]


@dataclass(frozen=True, slots=True)
class SchedulingRules:
    """
    The rules by which a machine starts, moves and ends jobs.

    Parameters
    ----------
    policy
        Order in which waiting jobs start: first come first served, EASY or conservative
        backfilling.
    semantics
        ``"batch"``: all events of one moment are taken together and the policy
        runs once. ``"pyss"``: it runs after every single event; not with
        ``overrun="extend"``.
    early
        Under conservative backfilling, when a job ends before its estimate:
        ``"compress"`` moves each waiting job, in order of submission, to the
        earliest start there is; ``"keep"`` leaves them where they are.
    overrun
        What happens to a job that outlives its estimate: ``"kill"`` ends it, ``"extend"``
        doubles the estimate as often as it takes. Extensions break promises, but
        never an advance reservation: a job in the way of one is killed.

    Raises
    ------
    InputError
        When a rule is not one of these, or two do not go together.
    """

    policy: Policy
    semantics: Semantics = "batch"
    early: Early = "compress"
    overrun: Overrun = "kill"

    def __post_init__(self) -> None:
        for what, value, known in (
            ("policy", self.policy, get_args(Policy)),
            ("semantics", self.semantics, get_args(Semantics)),
            ("early", self.early, get_args(Early)),
            ("overrun", self.overrun, get_args(Overrun)),
        ):
            if value not in known:
                raise InputError(
                    f'unknown {what} "{value}", expected one of {", ".join(known)}',
                    hint=spelling_hint(value, known),
                )
        if self.semantics == "pyss" and self.overrun == "extend":
            raise InputError(
                'goes with "pyss" semantics no further than "kill": one event at a time, a job '
                "submitted at the end of an estimate would start before it is extended",
                where="overrun",
            )
