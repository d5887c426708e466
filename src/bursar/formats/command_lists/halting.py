"""When a list of commands stops before its end: ``--halt now,fail=1``."""

import re
from dataclasses import dataclass
from typing import Literal, Self

from bursar.model.errors import InputError

_SHORT = {
    "0": "never",
    "1": "soon,fail=1",
    "2": "now,fail=1",
    "-1": "soon,success=1",
    "-2": "now,success=1",
}
_RULE = re.compile(r"(soon|now),(fail|success|done)=(\d+)(%?)", re.ASCII)

HaltMoment = Literal["soon", "now"]
"""Let running jobs end, or end them."""


@dataclass(frozen=True, slots=True)
class HaltRule:
    """
    Stops a list of commands after some jobs have failed, succeeded or ended.

    Parameters
    ----------
    moment
        What becomes of running jobs; None: it never stops.
    what
        Which jobs count.
    limit
        Number of them, or share of all jobs where ``is_share``.
    """

    moment: HaltMoment | None = None
    what: Literal["fail", "success", "done"] = "fail"
    limit: float = 0.0
    is_share: bool = False

    @classmethod
    def of(cls, text: str) -> Self:
        """
        Read a rule.

        Raises
        ------
        InputError
            When it is none.
        """
        rule = _SHORT.get(text, text)
        rule = re.sub(r"\A(\d+%)\Z", r"soon,fail=\1", rule)
        if rule == "never":
            return cls()
        match = _RULE.fullmatch(rule)
        if match is None or not int(match[3]):
            raise InputError(
                "expected never, or soon or now with fail, success or done and a number or "
                f'percentage, such as "now,fail=1" or "soon,fail=20%", got "{text}"'
            )
        moment: HaltMoment = "now" if match[1] == "now" else "soon"
        limit, is_share = int(match[3]), bool(match[4])
        what = match[2]
        assert what in ("fail", "success", "done")
        return cls(moment, what, limit / 100 if is_share else limit, is_share)  # type: ignore[arg-type]

    def reached(self, *, failed: int, succeeded: int, total: int) -> bool:
        """Whether so many jobs, of all, have failed or succeeded that no more are to start."""
        if self.moment is None:
            return False
        counts = {"fail": failed, "success": succeeded, "done": failed + succeeded}
        return counts[self.what] >= (self.limit * total if self.is_share else self.limit)
