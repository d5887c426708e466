"""
Forecasts of waits from a batch site's live queue.

The queue is projected several times, each time with another guess of how long its jobs run and of
what is submitted next; both are drawn from what was seen to happen at the site. Users ask for two
or three times what their jobs take, so that projections with the time asked for are far too long.
:class:`bursar.provisioning.wait_prediction.WaitPredictor` corrects the distribution by how earlier
projections came true.

References
----------
.. [1] Tsafrir, Etsion, Feitelson (2007). Backfilling using system-generated predictions rather than
   user runtime estimates. IEEE TPDS 18(6): 789-803. Their predictor is a user's last two jobs.
.. [2] Smith, Taylor, Foster (1999). Using run-time predictions to estimate queue wait times and
   improve scheduler performance. JSSPP '99. The queue is simulated with predicted run times.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bursar.cluster.machine import Machine
from bursar.cluster.sampled_starts import FutureJobs, sampled_starts
from bursar.model.errors import InputError
from bursar.provisioning.lrm.resource_manager import QueuedJob, QueueState
from bursar.provisioning.wait_forecast import ProjectedWaits, WaitForecast
from bursar.provisioning.wait_prediction import WaitPredictor

FloatArray = NDArray[np.float64]

DAY = 86_400.0

GUESSES = 40
"""Projections from which a distribution is made."""

OWN = 20
"""Last jobs of a user from which the run time of that user's next ones is drawn."""

FEWEST_OWN = 4
"""Jobs of a user from which on they are enough."""

RECENT = 500
"""Last jobs of all users from which the run time of others is drawn."""

MEMORY = 5000
"""Ended jobs remembered, at most."""

FORTNIGHT = 14
"""Days back, at most, to the stretch of submissions that is taken to come again."""

AHEAD = 3 * DAY
"""Seconds for which submissions are guessed."""

MOST_FUTURE = 1000
"""Submissions guessed, at most."""

MOST_NEW = 5
"""Jobs whose waits are projected after one look at a queue, at most."""

NEW_WORK = 200_000
"""
Square of the jobs in a queue, summed over the projections after one look, at most on average.

The time of a projection grows with this square; where kernels run as plain Python, this is a second
or two in half a minute.
"""

MOST_WORK = 20_000
"""Jobs that are simulated for one forecast, at most, unless this makes too few guesses."""

FEWEST_GUESSES = 10
"""Projections of the longest queues."""

VERSION = 1
"""Version of the form in which a forecaster is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJob:
    """
    A job that has ended.

    Parameters
    ----------
    submitted
        Seconds on the clock of the queue.
    processors
        Number that the job held.
    asked, ran
        Seconds that the job asked for, positive, and seconds that the job ran.
    user
        Whose it was; empty: unknown.
    """

    submitted: float
    processors: int
    asked: float
    ran: float
    user: str = ""


class EndedJobs:
    """
    The last jobs that ended at a site, from which run times and submissions are drawn.

    Run times are drawn as shares of the time asked for: of the user's last jobs where the user is
    known, otherwise of all.
    """

    def __init__(self) -> None:
        self._jobs: deque[EndedJob] = deque(maxlen=MEMORY)
        self._own: dict[str, deque[float]] = {}
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._sorted: dict[str, FloatArray] = {}  # shares of a user, "" for all, made when asked
        self._columns: FloatArray | None = None
        self._since_columns = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: EndedJob) -> None:
        """Record a job that has ended; one without a finite positive time is ignored."""
        if not (0 < job.asked < math.inf and 0 <= job.ran < math.inf and job.processors > 0):
            return
        share = min(job.ran / job.asked, 1.0)
        self._jobs.append(job)
        self._recent.append(share)
        self._since_columns += 1
        self._sorted.pop("", None)
        if job.user:
            self._own.setdefault(job.user, deque(maxlen=OWN)).append(share)
            self._sorted.pop(job.user, None)

    def draw_run_times(
        self,
        asked: FloatArray,
        elapsed: FloatArray,
        users: Sequence[str],
        count: int,
        rng: np.random.Generator,
    ) -> FloatArray:
        """
        Draw how long jobs still run.

        A job that has run for a while is compared with those alone that ran for longer.

        Parameters
        ----------
        asked, elapsed
            Seconds that each job asked for and has run for, shape ``(n,)``.
        users
            User of each; empty: unknown.

        Returns
        -------
        ndarray
            Seconds from now, shape ``(count, n)``; for jobs that have not begun, the run time.
        """
        drawn = np.empty((count, len(asked)))
        for i, (limit, past, user) in enumerate(
            zip(asked.tolist(), elapsed.tolist(), users, strict=True)
        ):
            least, even = past / limit, rng.random(count)
            for shares in (self._shares(user), self._shares("")):
                first = int(np.searchsorted(shares, least, side="right"))
                left = len(shares) - first
                if left:
                    drawn[:, i] = limit * shares[first + (even * left).astype(np.int64)] - past
                    break
            else:
                # Nobody is known to have come so far: any end until the limit is as likely.
                drawn[:, i] = max(limit - past, 0.0) * even
        return drawn

    def draw_future(self, now: float, count: int, rng: np.random.Generator) -> list[FutureJobs]:
        """
        Draw what is submitted after now: what was, at the same time of an earlier day.

        Nothing, while less than a day is known.
        """
        if self._columns is None or self._since_columns > len(self._jobs) // 50:
            rows = sorted((j.submitted, j.processors, j.asked, j.ran) for j in self._jobs)
            self._columns = np.array(rows, dtype=np.float64).reshape(-1, 4)
            self._since_columns = 0
        submitted = self._columns[:, 0]
        days = int(min((now - submitted[0]) // DAY, FORTNIGHT)) if len(submitted) else 0
        if days < 1:
            return [FutureJobs.none()] * count
        found = []
        for day in rng.integers(1, days + 1, count).tolist():
            begin = now - day * DAY
            first = int(np.searchsorted(submitted, begin, side="right"))
            last = int(np.searchsorted(submitted, min(now, begin + AHEAD), side="right"))
            again = self._columns[first : min(last, first + MOST_FUTURE)]
            found.append(
                FutureJobs(
                    submit=again[:, 0] - begin,
                    processors=again[:, 1].astype(np.int64),
                    estimate=again[:, 2],
                    runtime=np.clip(again[:, 3], 1e-3, again[:, 2]),
                )
            )
        return found

    def _shares(self, user: str) -> FloatArray:
        """Return the shares of a user's jobs, ascending; of all jobs where there are too few."""
        own = self._own.get(user, ())
        key = user if len(own) >= FEWEST_OWN else ""
        found = self._sorted.get(key)
        if found is None:
            found = np.sort(np.array(own if key else self._recent, dtype=np.float64))
            self._sorted[key] = found
        return found

    def kept(self) -> list[list[Any]]:
        """Return the jobs as data that can be written as JSON."""
        return [[j.submitted, j.processors, j.asked, j.ran, j.user] for j in self._jobs]


@dataclass(frozen=True, slots=True, eq=False)
class ProjectedQueue:
    """
    A queue on a simulated machine, as a plain user sees it.

    Parameters
    ----------
    machine
        Running jobs begin on the machine now; they have what is left of the time asked for.
    at
        Time of the look, seconds on the clock of the queue.
    asked, elapsed
        Seconds that each job asked for in all, and has run for: first those of
        :attr:`Machine.running`, then those of :attr:`Machine.waiting`.
    users
        User of each; empty: unknown.
    """

    machine: Machine
    at: float
    asked: FloatArray
    elapsed: FloatArray
    users: tuple[str, ...]


def project_waits(
    queue: ProjectedQueue,
    ended: EndedJobs,
    processors: int,
    seconds: float,
    rng: np.random.Generator,
) -> ProjectedWaits:
    """
    Project how long a job would wait that is submitted now.

    Raises
    ------
    InputError
        When the machine can never run the job.
    """
    machine = queue.machine
    stated = machine.expected_start(processors, seconds) - machine.now
    # The scheduler decides by the time asked for, so a job that starts at once by that does.
    if stated <= 0:
        return ProjectedWaits((0.0,), 0.0)
    guesses = max(FEWEST_GUESSES, min(GUESSES, MOST_WORK // max(len(queue.asked), 1)))
    lasting = ended.draw_run_times(queue.asked, queue.elapsed, queue.users, guesses, rng)
    future = ended.draw_future(queue.at, guesses, rng)
    starts = np.sort(sampled_starts(machine, processors, seconds, lasting, future))
    return ProjectedWaits(tuple(starts.tolist()), stated)


def user_of(job: QueuedJob) -> str:
    """Return by whose record a job's run time is guessed; schedulers tell plain users no more."""
    return "own" if job.own else ""


@dataclass(slots=True)
class QueueLook:
    """A look at a queue, and the jobs that were there."""

    queue: ProjectedQueue | None
    at: float
    jobs: dict[str, QueuedJob] = field(default_factory=dict)


class QueueForecaster:
    """
    Forecasts waits at one site from looks at its queue, and learns from what each job did.

    Every job that anybody submits counts: its wait is projected from the look before, and checked
    when a later look shows the job running.

    Parameters
    ----------
    rng
        Source of the guesses.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._ended = EndedJobs()
        self._waits = WaitPredictor()
        self._last: QueueLook | None = None

    def observe(self, state: QueueState, queue: ProjectedQueue | None) -> None:
        """
        Take in a look at the queue.

        Parameters
        ----------
        queue
            The same on a simulated machine; None where no node is up.
        """
        look = QueueLook(queue, state.at, {job.id: job for job in state.jobs})
        before, self._last = self._last, look
        if before is None or not before.at < look.at:
            return
        for key, job in before.jobs.items():
            if key not in look.jobs:
                self._on_gone(job, before, look)
        left = self._most_new(len(before.jobs))
        for key, job in look.jobs.items():
            known = before.jobs.get(key)
            if known is None and left:
                left -= self._on_new(key, job, before)
            if job.running and (known is None or not known.running) and job.began is not None:
                self._waits.began(key, job.began)

    @property
    def last_look(self) -> "QueueLook | None":
        """The latest look at the queue; None before the first one."""
        return self._last

    def forecast(
        self, processors: int, seconds: float, look: "QueueLook | None" = None
    ) -> WaitForecast | None:
        """
        Return how long a request for processors and seconds would wait that is made now.

        Parameters
        ----------
        look
            The queue that the request joins; None: the latest one.

        Returns
        -------
        WaitForecast or None
            None where the queue has not been seen, or could never run such a job.
        """
        projection = self._projection(look or self._last, processors, seconds)
        if projection is None:
            return None
        return self._waits.forecast("", processors, seconds, projection)

    @property
    def waits(self) -> WaitPredictor:
        """What became of the forecasts."""
        return self._waits

    def kept(self) -> dict[str, Any]:
        """Return what was learned as data that can be written as JSON."""
        return {"version": VERSION, "ended": self._ended.kept(), "waits": self._waits.kept()}

    @classmethod
    def of_kept(cls, data: Mapping[str, Any], rng: np.random.Generator) -> "QueueForecaster":
        """
        Read what was kept.

        Raises
        ------
        InputError
            When the data are not of this form, or of another version.
        """
        made = cls(rng)
        try:
            if data["version"] != VERSION:
                raise InputError(f"a queue's history of version {data['version']!r}, not {VERSION}")
            for submitted, processors, asked, ran, user in data["ended"]:
                if not math.isfinite(submitted):
                    raise InputError("a submission at no time")
                made._ended.add(
                    EndedJob(
                        submitted=float(submitted),
                        processors=int(processors),
                        asked=float(asked),
                        ran=float(ran),
                        user=str(user),
                    )
                )
            made._waits = WaitPredictor.of_kept(data["waits"])
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"not a queue's history: {error!r}") from error
        return made

    def _most_new(self, jobs: int) -> int:
        """Return how many new jobs are projected after a look at a queue of so many."""
        most = NEW_WORK / max(jobs, 1) ** 2
        # Of the longest queues, one after some looks: the forecasts are calibrated later there.
        return min(MOST_NEW, int(most)) if most >= 1 else int(self._rng.random() < most)

    def _projection(
        self, look: QueueLook | None, processors: int, seconds: float
    ) -> ProjectedWaits | None:
        if look is None or look.queue is None:
            return None
        try:
            return project_waits(look.queue, self._ended, processors, seconds, self._rng)
        except InputError:  # wider than the nodes that are up
            return None

    def _on_gone(self, job: QueuedJob, before: QueueLook, look: QueueLook) -> None:
        """A job has left the queue between two looks."""
        middle = (before.at + look.at) / 2
        self._waits.ended(job.id, middle)
        if not job.running or job.began is None or job.seconds is None:
            return
        self._ended.add(
            EndedJob(
                submitted=job.began if job.submitted is None else job.submitted,
                processors=job.processors,
                asked=job.seconds,
                ran=max(middle - job.began, 0.0),
                user=user_of(job),
            )
        )

    def _on_new(self, key: str, job: QueuedJob, before: QueueLook) -> bool:
        """Project the wait of a job that came since the look before; return whether it could be."""
        since = before.at if job.submitted is None else job.submitted
        # Held ones wait for their users. Others were submitted long ago, and hidden until now.
        if job.held or job.seconds is None or since < before.at:
            return False
        projection = self._projection(before, job.processors, job.seconds)
        if projection is None:
            return False
        self._waits.asked(key, "", job.processors, job.seconds, since, projection)
        return True
