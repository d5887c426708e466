"""Backend by which joblib, and so scikit-learn, makes its calls on leased processors."""

import inspect
from concurrent.futures import Future
from typing import Any

from joblib.parallel import (
    AutoBatchingMixin,
    ParallelBackendBase,
    SequentialBackend,
    ThreadingBackend,
    register_parallel_backend,
)

from bursar.api.executor import CallSubmitter, Executor
from bursar.model.errors import InputError

NAME = "bursar"
"""Name of the backend in ``joblib.parallel_config(backend=...)``."""


class JoblibBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]
    """
    Makes the calls of ``joblib.Parallel`` on the workers of an executor.

    The executor is started by the first call and serves all later ones of the same backend, as
    within one ``with joblib.parallel_config(backend="bursar")``; it ends with the backend.

    Parameters
    ----------
    executor
        Executor to use, or its ``options(...)``; the caller shuts it down. None: one is made.
    nesting_level, inner_max_num_threads
        As of any joblib backend; the threads of numerical libraries within a call are as many as
        the call has processors, unless stated.
    settings
        Parameters of :class:`bursar.Executor`, such as ``sites`` and ``budget``.

    Raises
    ------
    InputError
        When a setting is unknown.
    """

    supports_retrieve_callback = True
    supports_inner_max_num_threads = True
    default_n_jobs = -1

    def __init__(
        self,
        executor: CallSubmitter | None = None,
        nesting_level: int | None = None,
        inner_max_num_threads: int | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(nesting_level=nesting_level, inner_max_num_threads=inner_max_num_threads)
        known = set(inspect.signature(Executor).parameters)
        if unknown := sorted(set(settings) - known):
            raise InputError(
                f'"{unknown[0]}" is no setting of the backend "{NAME}"',
                hint=f"there are executor, {', '.join(sorted(known))}",
            )
        if executor is not None and settings:
            raise InputError(f'"{next(iter(settings))}" is set where an executor is given')
        self._settings = settings
        self._given = executor
        self._made: tuple[int | None, Executor] | None = None
        self._calls: set[Future[Any]] = set()
        self.parallel: Any = None

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """
        Return how many calls run at a time.

        Raises
        ------
        ValueError
            For 0, which has no meaning.
        """
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is not None and n_jobs > 0:
            return n_jobs
        there = self._executor(None).calls_at_a_time
        # At least two: joblib makes the calls of one worker itself, in this process.
        return max(2, there + 1 + (-1 if n_jobs is None else n_jobs))

    def configure(
        self,
        n_jobs: int = 1,
        parallel: Any = None,
        prefer: Any = None,
        require: Any = None,
        **settings: Any,
    ) -> int:
        """Start the executor, if there is none, and return how many calls run at a time."""
        if require == "sharedmem":
            raise InputError(f'calls of the backend "{NAME}" share no memory')
        self.parallel = parallel
        # As many as are stated, also more than this machine has processors: calls may well wait.
        self._executor(n_jobs if n_jobs > 0 else None)
        return self.effective_n_jobs(n_jobs)

    def submit(self, func: Any, callback: Any = None) -> Future[Any]:
        """Submit a batch of calls."""
        executor = self._executor(None)
        threads = self.inner_max_num_threads or executor.processors_of_a_call
        call = executor.submit(_run_batch, func, threads)
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        if callback is not None:
            call.add_done_callback(callback)
        return call

    def retrieve_result_callback(self, out: Future[Any]) -> Any:
        """Return the results of a batch that has ended, or raise what a call raised."""
        return out.result()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """End the calls that run and cancel those that wait; the next ones find new workers."""
        for call in list(self._calls):
            call.cancel()
        if self._made is not None:
            self._made[1].terminate_workers()
            self._made[1].shutdown()
            self._made = None

    def get_nested_backend(self) -> tuple[Any, int | None]:
        """Return the backend of calls within calls: threads on the processors of the call."""
        level = (self.nesting_level or 0) + 1
        processors = self._executor(None).processors_of_a_call
        if processors > 1 and level == 1:
            return ThreadingBackend(nesting_level=level), processors
        return SequentialBackend(nesting_level=level), None

    def _executor(self, processors: int | None) -> CallSubmitter:
        if self._given is not None:
            return self._given
        if self._made is not None:
            _, executor = self._made
            if processors is None or "sites" in self._settings or processors == self._made[0]:
                return executor
            executor.shutdown(wait=False)
        settings = dict(self._settings)
        if "sites" not in settings:
            settings.setdefault("processors", processors)
        executor = Executor(**settings)
        self._made = processors, executor
        return executor


def _run_batch(batch: Any, threads: int) -> Any:
    """Make the calls of a batch, with so many threads of numerical libraries."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:  # then there is nothing to limit them by
        return batch()
    with threadpool_limits(threads):
        return batch()


def register_joblib() -> None:
    """
    Make ``"bursar"`` known as a backend of joblib.

    >>> import bursar, joblib                                           # doctest: +SKIP
    >>> bursar.register_joblib()                                        # doctest: +SKIP
    >>> with joblib.parallel_config(backend="bursar", budget="2 SU"):   # doctest: +SKIP
    ...     search.fit(x, y)
    """
    register_parallel_backend(NAME, JoblibBackend)
