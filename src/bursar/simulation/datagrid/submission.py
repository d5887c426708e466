"""The job submission service: a job waits there for its files, and is then handed to its site."""

from collections import deque
from collections.abc import Callable

from bursar.simulation.datagrid.grid_job import GridJob, GridJobState
from bursar.simulation.datagrid.scenario import GridServices
from bursar.simulation.virtual_loop import VirtualLoop


class SubmissionService:
    """
    Takes jobs from the broker to their sites (section 2.1).

    Parameters
    ----------
    services
        Overhead of the service, and the jobs that are handled at a time.
    loop
        Loop that provides the time.
    bring
        Brings a job's files; answers by :meth:`staged` or :meth:`failed`.
    hand_over
        Takes a job at its site.
    """

    def __init__(
        self,
        services: GridServices,
        loop: VirtualLoop,
        *,
        bring: Callable[[GridJob], None],
        hand_over: Callable[[GridJob], None],
    ) -> None:
        self._services = services
        self._loop = loop
        self._bring = bring
        self._hand_over = hand_over
        self._waiting: deque[GridJob] = deque()
        self._staging = 0
        self._ready: deque[GridJob] = deque()
        self._handing = 0
        self._turning = False

    @property
    def waiting(self) -> int:
        """Jobs whose files are not being brought yet."""
        return len(self._waiting)

    @property
    def ready(self) -> int:
        """Jobs with all files that are not at their sites yet."""
        return len(self._ready) + self._handing

    def accept(self, job: GridJob) -> None:
        """Take a job, with the site that the broker chose."""
        job.state = GridJobState.STAGING
        self._waiting.append(job)
        self._turn()

    def staged(self, job: GridJob) -> None:
        """Take note that a job's files have arrived."""
        self._staging -= 1
        job.state = GridJobState.SUBMITTING
        self._ready.append(job)
        self._turn()

    def failed(self) -> None:
        """Take note that a job's files cannot be had."""
        self._staging -= 1
        self._turn()

    def _turn(self) -> None:
        """Bring and hand over as much as possible now; a nested call returns at once."""
        # Bringing and handing over may call back at once; without this, many jobs without files
        # would be as many calls within one another.
        if self._turning:
            return
        self._turning = True
        while self._bring_one() or self._hand_one():
            pass
        self._turning = False

    def _bring_one(self) -> bool:
        most = self._services.stagings
        if not self._waiting or (most is not None and self._staging >= most):
            return False
        self._staging += 1
        self._bring(self._waiting.popleft())
        return True

    def _hand_one(self) -> bool:
        most = self._services.channels
        if not self._ready or (most is not None and self._handing >= most):
            return False
        self._handing += 1
        job = self._ready.popleft()
        if self._services.overhead:
            self._loop.call_later(self._services.overhead, self._handed, job)
        else:
            self._handed(job)
        return True

    def _handed(self, job: GridJob) -> None:
        self._handing -= 1
        self._hand_over(job)
        self._turn()
