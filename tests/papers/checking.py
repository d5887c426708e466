"""Check that findings have the form of their JSON, and verdicts by the rule alone."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from bursar_papers.experiment import PaperFinding

KEYS = {"what", "paper", "own", "ours", "verdict", "comparisons", "remark"}
FIGURES = {"name", "mean", "low", "high", "at_least", "at_most"}
UNCOUNTED = {"identity", "calibrated", "impossible"}


def check_findings(findings: Sequence[PaperFinding]) -> None:
    """Check the findings of a run of any size."""
    assert findings
    check_documents([finding.to_dict() for finding in findings])


def check_documents(findings: Sequence[Mapping[str, Any]]) -> None:
    """Check findings as they are in JSON, which has no infinite numbers."""
    for finding in json.loads(json.dumps(findings, allow_nan=False)):
        assert finding.keys() == KEYS
        assert finding["what"]
        assert finding["ours"]
        for comparison in finding["comparisons"]:
            assert comparison.keys() == FIGURES
            assert comparison["at_least"] is not None or comparison["at_most"] is not None
        verdict, compared = finding["verdict"], finding["comparisons"]
        assert verdict in UNCOUNTED or verdict == by_the_rule(compared)
        assert finding["paper"] or verdict is None


def by_the_rule(comparisons: Sequence[Mapping[str, Any]]) -> str | None:
    """Judge by the numbers alone: inside, outside, or neither."""
    inf = float("inf")

    def number(value: float | None, infinite: float) -> float:
        return infinite if value is None else value

    inside, outside = [], []
    for c in comparisons:
        low, high = number(c["low"], -inf), number(c["high"], inf)
        at_least, at_most = number(c["at_least"], -inf), number(c["at_most"], inf)
        inside.append(at_least <= low and high <= at_most)
        outside.append(high < at_least or at_most < low)
    if not comparisons:
        return None
    return "differs" if any(outside) else "agrees" if all(inside) else "open"
