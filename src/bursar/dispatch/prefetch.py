"""Prefetching: how many tasks wait at a worker, and when they are taken back."""

from collections.abc import Callable, Sequence

from bursar.model.task import Outcome

HORIZON = 0.15
"""Seconds of work that may wait at a worker: enough to hide a round trip and a sync."""

MOST = 2048
"""Tasks waiting at a worker, at most, however short."""

SOONEST = 0.03
"""Seconds for which a task waits at a worker, at least, before it is returned unasked: enough for
a delay that the machine causes, of which the tasks are innocent."""

_FASTEST = 2e-6  # seconds; below this the clock says nothing
_LONGER = 4.0  # times as long as the tasks before: what the worker has begun is long
_LONGER_ASKED = 2.0  # the same where another worker is idle, so that a mistake costs little
_SOONEST_ASKED = 0.005  # seconds
_WEIGHT = 0.25  # of the last task, in the mean that a worker keeps


class Prefetch:
    """
    Learns how long a worker's tasks take and keeps :data:`HORIZON` seconds of work waiting there.

    A long task is not prefetched: while it waited behind another it could have run elsewhere.
    How long a task takes is not known before, so what was prefetched comes back in two ways.
    A worker that has begun nothing for much longer than its tasks take returns all that waits
    there, unasked (:class:`WaitLimit`). A worker is asked for a half of it as soon as another
    worker is idle, and returns all if what runs there has turned out to be long.

    A worker that has returned less than it was asked for has nothing more to return; one that has
    returned more, or something unasked, is busy with long tasks. Until one of its tasks has ended
    such a worker gets no task ahead of time and is not asked again.

    Parameters
    ----------
    on_change
        Called when the worker may take or return more tasks than before.
    """

    __slots__ = ("_asked", "_is_stuck", "_mean", "_on_change")

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self._on_change = on_change
        self._mean: float | None = None
        self._asked = 0
        self._is_stuck = False

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """
        Learn the mean duration from attempts that have ended on the worker.

        An end also means that the worker may have something to return again.
        """
        if not outcomes:
            return
        self._is_stuck = False
        mean = sum(o.end - o.start for o in outcomes) / len(outcomes)
        mean = max(mean, _FASTEST)
        # A moving mean: many short tasks count soon, one odd task moves it little.
        weight = min(0.5, len(outcomes) / 16)
        self._mean = mean if self._mean is None else self._mean + weight * (mean - self._mean)
        self._on_change()

    def depth(self, processors: int) -> int:
        """Return how many tasks of one processor may wait."""
        # Nothing ahead of time where nothing is known: two long calls that were taken for short
        # ones once ran one after the other beside an idle worker.
        if self._mean is None or self._is_stuck:
            return 0
        return min(MOST, int(HORIZON * processors / self._mean))

    @property
    def may_ask(self) -> bool:
        """Whether the worker may have tasks to return when asked."""
        return not (self._asked or self._is_stuck)

    def asked(self, count: int) -> None:
        """Note how many tasks the worker was asked to return; an answer always comes."""
        self._asked = count

    def returned(self, count: int) -> None:
        """Note that the worker has returned so many tasks, asked or not."""
        # Less than was asked for: what is left there has begun. More, or unasked: what runs there
        # is long, and whatever is given ahead would wait behind it.
        self._is_stuck |= count != self._asked or not self._asked
        self._asked = 0
        self._on_change()

    def reconnected(self) -> None:
        """Forget what the worker was asked for: the answer was lost with the connection."""
        self._asked = 0
        self._is_stuck = False
        self._on_change()


class WaitLimit:
    """
    Says for how long tasks wait at a worker that begins none of them; kept by the worker.

    After a task that turns out to be long, what waits behind it is worth more elsewhere, at once
    and as a whole. A worker knows this first: it has begun nothing for several times as long as
    its last tasks took.

    Attributes
    ----------
    mean
        Seconds that the worker's last tasks took, a moving mean; None while no task has ended.
    seconds
        The limit, between :data:`SOONEST` and :data:`HORIZON`; :data:`HORIZON` while no task has
        ended.
    """

    __slots__ = ("mean", "seconds")

    def __init__(self) -> None:
        self.mean: float | None = None
        self.seconds = HORIZON

    def learn(self, seconds: float) -> None:
        """Learn from a task that has ended how long the worker's tasks take."""
        known = self.mean
        self.mean = mean = seconds if known is None else known + _WEIGHT * (seconds - known)
        self.seconds = min(HORIZON, max(SOONEST, _LONGER * mean))

    def to_return(self, waiting: int, asked: int, since: float) -> int:
        """
        Return how many waiting tasks a worker returns that is asked for some, the last first.

        The task that comes next would be the last to be returned. Behind a long one all go back:
        the idle worker would else have to ask again for a half of each rest.

        Parameters
        ----------
        waiting, asked
            Tasks that wait at the worker, and how many the worker is asked for.
        since
            Seconds for which the worker has begun none.
        """
        mean = self.mean
        if mean is not None and since >= max(_SOONEST_ASKED, _LONGER_ASKED * mean):
            return waiting
        return min(asked, waiting)
