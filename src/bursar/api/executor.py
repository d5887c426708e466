"""Python functions as tasks: a ``concurrent.futures.Executor`` over leased workers."""

import itertools
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from bursar.api.call_encoding import (
    CallEncoder,
    amount_of,
    call_kind,
    chunks_of,
    flat,
    run_chunk,
)
from bursar.api.calls.call_options import CallOptions
from bursar.api.calls.executor_thread import CallFuture, ExecutorThread, TaskFailed
from bursar.api.calls.pool_methods import PoolMethods, buffered_map
from bursar.api.site_resolution import Sites, resolve_sites
from bursar.formats.units import parse_deadline
from bursar.model.campaign import Campaign
from bursar.model.errors import InputError
from bursar.model.site import SiteFacts
from bursar.report.progress import ProgressSnapshot
from bursar.runs.recording.user_history import stated_history

__all__ = ["CallSubmitter", "Executor", "TaskFailed"]

P = ParamSpec("P")
T = TypeVar("T")


class CallSubmitter(PoolMethods):
    """
    Submits calls, all with the same options, to the thread of an executor.

    Parameters
    ----------
    options
        What each call needs.
    owner
        The executor, which is not collected while this object is used; None: this object is it.
    """

    def __init__(
        self,
        thread: ExecutorThread,
        encoder: CallEncoder,
        options: CallOptions,
        owner: "CallSubmitter | None" = None,
    ) -> None:
        self._thread = thread
        self._encoder = encoder
        self._options = options
        self._owner = owner

    @property
    def calls_at_a_time(self) -> int:
        """Number of calls with these options that run at the same time, at most."""
        return max(1, self._thread.processors // self._options.processors)

    @property
    def processors_of_a_call(self) -> int:
        """Processors that each call holds."""
        return self._options.processors

    @property
    def _max_workers(self) -> int:
        # Dask asks an executor for this that is given as its scheduler.
        return self.calls_at_a_time

    def options(self, **options: Any) -> "CallSubmitter":
        """
        Return this executor for calls that need something else; it is the same executor.

        Options that are not given stay as they are.

        Parameters
        ----------
        processors
            Processors of one machine that each call holds; ``BURSAR_PROCESSORS`` tells the call.
        memory
            What each call may use, ``"2 GB"`` or bytes. It runs where that is free, and is killed
            when it uses more.
        runtime
            What a call should take, ``"5 min"`` or seconds at speed 1: the time that is asked of a
            queue, and what goes first. It is no limit.
        gpus
            GPUs that each call holds; ``CUDA_VISIBLE_DEVICES`` tells the call which.
        resources
            Countable resources of the site, such as licences: numbers by name.
        wall_limit, retries
            See :class:`Executor`.
        name
            Kind of the calls, for history and bill; the function's name, unless stated.

        Raises
        ------
        InputError
            When one is unknown, or no site could ever run such a call.
        """
        changed = self._options.changed(options)
        changed.check_room(self._thread.sites, self._thread.widest())
        return CallSubmitter(self._thread, self._encoder, changed, self._owner or self)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """
        Schedule the call ``fn(*args, **kwargs)``.

        Raises
        ------
        RuntimeError
            After :meth:`shutdown`, or in a process forked from the executor's own.
        BudgetStop
            When the budget is spent.
        BrokenExecutor
            When the workers are gone for good.
        """
        call = CallFuture(self._thread)
        try:
            payload = self._encoder.encode(fn, args, kwargs)
        except Exception as error:
            # As ProcessPoolExecutor has it: what cannot be sent is the future's failure.
            call.set_running_or_notify_cancel()
            call.set_exception(error)
            return call
        number, as_data = self._thread.next_id(), self._thread.as_data
        task = self._options.task(number, call_kind(fn, args), payload, as_data=as_data)
        self._thread.take(call, task)
        return call

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[T]:
        """
        Apply a function as the built-in ``map`` does, in parallel; keep the arguments' order.

        Parameters
        ----------
        timeout
            Seconds after which ``next`` raises TimeoutError, counted from this call.
        chunksize
            Number of calls that travel as one task; at least 1.
        buffersize
            Most calls, or chunks, that are submitted and whose results have not been taken; the
            iterables are then read as results are taken, and may be endless. None: no limit, and
            they are read at once.
        """
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1")
        if buffersize is not None and not isinstance(buffersize, int):
            raise TypeError("buffersize must be an integer or None")
        if buffersize is not None and buffersize < 1:
            raise ValueError("buffersize must be None or > 0")
        # A chunk of one would be wrapped in a list on both sides for nothing.
        if chunksize == 1:
            return self._map(fn, iterables, timeout, buffersize)
        chunks = chunks_of(zip(*iterables, strict=False), chunksize)
        return flat(self._map(run_chunk, (itertools.repeat(fn), chunks), timeout, buffersize))

    def _map(
        self,
        fn: Callable[..., Any],
        iterables: Sequence[Iterable[Any]],
        timeout: float | None,
        buffersize: int | None,
    ) -> Iterator[Any]:
        if buffersize is None:
            return super().map(fn, *iterables, timeout=timeout)
        arguments = zip(*iterables, strict=False)
        return buffered_map(self.submit, fn, arguments, buffersize, timeout)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """
        Accept no more calls, and give the processors back when all calls have ended.

        Parameters
        ----------
        wait
            Return only when all calls have ended and the processors are given back.
        cancel_futures
            Cancel what has not started.
        """
        self._thread.close(cancel=cancel_futures)
        if wait:
            self._thread.join()


class Executor(CallSubmitter):
    """
    Runs Python calls on workers of one or more sites.

    The class keeps the contract of :class:`concurrent.futures.Executor`: exceptions of a call are
    raised by its future, with the traceback in the worker as their cause; ``cancel`` works until
    the call is with a worker; ``map`` takes a chunk size; leaving the ``with`` block waits. An
    executor without references, or one that the program did not shut down, finishes its calls and
    gives the processors back.

    Functions are pickled by value where need be, so lambdas and functions of a notebook will do.
    Results of this machine's own workers may be anything that can be pickled; from another Bursar,
    and where clusters, ssh or clouds are among the sites, they come back as data
    (:mod:`bursar.worker.call_results`), which runs no code here, unless the other Bursar's site
    says ``trust = "pickle"``. A call that raises is not repeated; nor is one whose worker
    died, unless ``retries`` says so. What a call prints is not shown, but kept in the journal.

    Parameters
    ----------
    processors
        Processors to lease of each site, so many calls at a time; None: all of them. Of this
        machine, if no sites are given, also more than it has, whatever other runs use.
    sites
        A sites file, or the sites; None: this machine. Processors of other Bursars are held for
        the longest agreement of their ``[pool]`` at most, those of batch clusters, ssh and clouds
        while calls need them.
    budget
        Most that may be spent, ``"40 SU"`` or a number; None for no limit.
        Calls that it does not cover raise :class:`bursar.BudgetStop`.
    deadline
        Time from now on, ``"33m"`` or seconds, or a moment, ``"2026-11-28 18:00"``, after which
        calls are ended and, as later ones, raise :class:`bursar.DeadlineMissed`; None for no limit.
    wall_limit
        Seconds after which a call is killed and raises :class:`TaskFailed`; None for no limit.
    retries
        Number of further tries of a call whose worker died.
    folder
        Where to keep the journal and ``bill.json``; None: nowhere, once shut
        down. It must not hold a journal yet. Nodes of a batch cluster must see it or, where it is
        None, the present folder.
    history
        File of the history that the calls are added to, as kinds by the function's qualified name;
        ``"none"``: nowhere; None: as the variable ``BURSAR_HISTORY`` says, else the user's.

    Raises
    ------
    InputError
        When an argument is out of range.
    SiteError
        When the workers cannot be started.
    """

    def __init__(
        self,
        processors: int | None = None,
        *,
        sites: Sites = None,
        budget: str | float | None = None,
        deadline: str | float | None = None,
        wall_limit: float | None = None,
        retries: int = 0,
        folder: str | Path | None = None,
        history: str | Path | None = None,
    ) -> None:
        options = CallOptions().changed({"wall_limit": wall_limit, "retries": retries})
        facts = resolve_sites(sites)
        if sites is None and processors is not None:
            # As many as are stated, as of the standard library's executors: calls may well wait.
            facts = tuple(_as_stated(site, processors) for site in facts)
        encoder = CallEncoder(shares=all(site.kind == "local" for site in facts))
        if any(site.remote is not None for site in facts):
            from bursar.api.queues import with_prices

            facts = with_prices(facts)
        thread = ExecutorThread(
            facts,
            processors=processors,
            budget=amount_of(budget, facts),
            deadline=deadline_of(deadline),
            folder=None if folder is None else Path(folder),
            history=stated_history(history),
        )
        # For executors that nobody refers to any more. At the end of the program _shut_down_all
        # waits for the calls instead.
        weakref.finalize(self, thread.leave).atexit = False
        super().__init__(thread, encoder, options)
        thread.open()

    def terminate(self) -> None:
        """Do as :meth:`terminate_workers`, by the name of ``multiprocessing.Pool``."""
        self.terminate_workers()

    def terminate_workers(self) -> None:
        """
        Accept no more calls, end those that run, and give the processors back.

        Calls without a result raise :class:`TaskFailed`; :meth:`shutdown` waits for the end.
        """
        self._thread.terminate()

    def progress(
        self, campaign: Campaign | None = None, places: Sequence[int] = ()
    ) -> ProgressSnapshot:
        """
        Return how the calls stand: counts, money, forecast of the end, and odds of the goal.

        Printed, it is one line; in a notebook, as the last expression of a cell, a bar. The
        forecast rests on calls that have ended, of this executor and in the history, and on
        run times that options state; it is of the calls that are there now, or of a campaign.

        Parameters
        ----------
        campaign
            Campaign whose tasks become calls when they are ready; None: no calls are to come.
        places
            Number of the task in the campaign of each call so far, in the order of submission.
        """
        return self._thread.progress(campaign, places)

    def _repr_html_(self) -> str:
        return self.progress()._repr_html_()

    def spending(self) -> tuple[float, float]:
        """Return what the leases have cost so far, and what is held for them, currency units."""
        return self._thread.spending()


def deadline_of(deadline: str | float | None, begin: float | None = None) -> float | None:
    """
    Return a deadline in seconds from a begin; None: there is none.

    Parameters
    ----------
    begin
        Seconds since the epoch; None: now.

    Raises
    ------
    InputError
        When the deadline is no time, or not positive.
    """
    if deadline is None:
        return None
    try:
        seconds = parse_deadline(deadline, time.time(), begin)
    except InputError as error:
        raise error.within("deadline") from None
    if not seconds > 0:
        raise InputError(f"must be positive, got {deadline}", where="deadline")
    return seconds


def _as_stated(here: SiteFacts, processors: int) -> SiteFacts:
    """Return this machine with as many processors as are stated, where it has fewer."""
    if processors <= here.processors:
        return here
    # Not divided among runs: calls that wait hold no processor back from others.
    return replace(here, processors=min(processors, _MOST_HERE), shared=False)


_MOST_HERE = 4096
"""Processors that this machine may be stated to have: each is a process when it is used."""
