"""Estimates of how long tasks take, from the durations of tasks that have ended."""

import math


class DurationEstimate:
    """
    Estimates how long the tasks of an instance take, from those that have succeeded.

    Attributes
    ----------
    stretch
        Mean ratio of the seconds that tasks took to their estimates; 1 while unknown.
    mean
        Mean seconds of a task at speed 1; 0 while none has ended.
    """

    __slots__ = ("_ended", "_estimated", "_seconds", "_taken", "mean", "stretch")

    def __init__(self) -> None:
        self._estimated = 0.0  # seconds, of those with an estimate, at the speed they had
        self._taken = 0.0
        self._ended = 0
        self._seconds = 0.0  # at speed 1, of all
        self.stretch = 1.0
        self.mean = 0.0

    def learn(self, estimate: float, seconds: float, speed: float = 1.0) -> None:
        """Count an ended task: its estimate at speed 1, and its seconds at the given speed."""
        self._ended += 1
        self._seconds += seconds * speed
        self.mean = self._seconds / self._ended
        if math.inf > estimate > 0:
            self._estimated += estimate / speed
            self._taken += seconds
            self.stretch = self._taken / self._estimated

    def expect(self, estimate: float) -> float:
        """Return the seconds that a task should take at speed 1; infinite: it has no estimate."""
        return self.mean if estimate == math.inf else estimate * self.stretch
