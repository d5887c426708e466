"""How much work a worker keeps waiting beside what it runs."""

from collections.abc import Sequence

from bursar.model.outcome import Outcome

HORIZON = 0.15
"""Seconds of work that may wait at a worker: enough to hide a round trip and a sync."""

MOST = 2048
"""Tasks, however short they are."""

_FASTEST = 2e-6  # seconds; below this the clock says nothing


class Prefetch:
    """
    Learns how long tasks take and keeps a moment's worth of them waiting.

    Long tasks are not prefetched at all: one that waits behind another could
    have run elsewhere.
    """

    __slots__ = ("_mean",)

    def __init__(self) -> None:
        self._mean: float | None = None

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """These have ended on the worker."""
        if not outcomes:
            return
        mean = sum(o.end - o.start for o in outcomes) / len(outcomes)
        mean = max(mean, _FASTEST)
        weight = min(0.5, len(outcomes) / 16)
        self._mean = mean if self._mean is None else self._mean + weight * (mean - self._mean)

    def depth(self, processors: int) -> int:
        """Tasks of one processor that may wait."""
        if self._mean is None:
            return 0
        return min(MOST, int(HORIZON * processors / self._mean))
