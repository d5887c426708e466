"""Queries of schedulers, other Bursars, Dask clusters and hosts, with or without a running loop."""

import asyncio
import ctypes
import secrets
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bursar.model.errors import InputError, SiteError
from bursar.model.matching import SiteStatus
from bursar.model.site import SiteFacts

if TYPE_CHECKING:
    from bursar.provisioning.wait_forecast import WaitForecast
    from bursar.sites.batch import BatchSite
    from bursar.sites.dask.dask_site import DaskSite
    from bursar.sites.remote.remote_site import RemoteSite
    from bursar.sites.ssh_site import SshSite

# Calling of work that needs an asyncio loop where one may already run.

T = TypeVar("T")


def run_outside_loop(work: Callable[[], T]) -> T:
    """Call ``work``, which runs an asyncio loop, also within a running loop, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    return _in_thread(work)  # a thread has one loop at a time


def _in_thread(work: Callable[[], T]) -> T:
    """Call ``work`` in a new thread, and pass an interrupt on to that thread."""
    done: Future[T] = Future()

    def do() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    thread = threading.Thread(target=do, name="bursar-run")
    thread.start()
    try:
        return done.result()
    except KeyboardInterrupt:
        # Tasks must not go on spending behind an interrupted cell.
        if thread.is_alive() and not done.done():
            # Python delivers Ctrl-C to the main thread only; this hands it on, as for a run without
            # a notebook.
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident or 0), ctypes.py_object(KeyboardInterrupt)
            )
        raise
    finally:
        thread.join()


# Queries of batch schedulers, other Bursars and Dask clusters about their processors.


def can_be_queried(site: SiteFacts) -> bool:
    """Whether the site has a scheduler or service that reports a status."""
    return site.batch is not None or site.remote is not None


def with_free_slots(sites: Sequence[SiteFacts]) -> tuple[SiteFacts, ...]:
    """
    Return the sites with free slots: of batch schedulers, and of other Bursars with prices.

    All sites are asked at once. A site that does not answer, or has nothing free in sight, is left
    out.

    Raises
    ------
    SiteError
        When no site is left; the message holds all answers.
    """
    asked = [site for site in sites if can_be_queried(site) and site.slots is None]
    offers = _ask_all(asked, _offer)
    left, silent = [], []
    for site in sites:
        answer = offers.get(site.name, site)
        if isinstance(answer, SiteError):
            silent.append(str(answer))
        elif site.name in offers and not answer.slots:
            silent.append(f"{site.name}: nothing is free in sight")
        else:
            left.append(answer)
    if not left:
        raise SiteError("; ".join(silent), transient=True)
    return tuple(left)


def query_sites(
    sites: Sequence[SiteFacts],
) -> Mapping[str, tuple[SiteFacts, SiteStatus] | SiteError]:
    """Return, by name, the present report or the error of each site that can be asked."""
    asked = [site for site in sites if can_be_queried(site) or site.dask or site.ssh]
    return _ask_all(asked, _status_of_site)


def with_prices(sites: Sequence[SiteFacts]) -> tuple[SiteFacts, ...]:
    """
    Return the sites, with the present prices and facts of other Bursars.

    Raises
    ------
    SiteError
        When a Bursar does not answer.
    """
    prices = query_sites([site for site in sites if site.remote is not None])
    found = []
    for site in sites:
        answer = prices.get(site.name)
        if isinstance(answer, SiteError):
            raise answer
        found.append(site if answer is None else answer[0])
    return tuple(found)


def with_counted_hosts(sites: Sequence[SiteFacts]) -> tuple[SiteFacts, ...]:
    """
    Return the sites, where hosts that do not state their processors were asked for them.

    Raises
    ------
    SiteError
        When none of a site's hosts can be used.
    """
    hosts = {site.name: site.ssh.hosts for site in sites if site.ssh is not None}
    answers = _ask_all(
        [
            site
            for site in sites
            if any(host.processors is None for host in hosts.get(site.name, ()))
        ],
        lambda site: site.facts,
    )
    found = []
    for site in sites:
        answer = answers.get(site.name, site)
        if isinstance(answer, SiteError):
            raise answer
        found.append(answer)
    return tuple(found)


def statuses(sites: Sequence[SiteFacts]) -> Mapping[str, SiteStatus | SiteError]:
    """Return the status of the sites that can be asked."""
    return {
        name: answer if isinstance(answer, SiteError) else answer[1]
        for name, answer in query_sites(sites).items()
    }


RequestWaits = Callable[[int, float], "WaitForecast | None"]
"""How long a request for so many processors and seconds would wait; None: nothing is known."""


def queue_waits(sites: Sequence[SiteFacts], runs: Path) -> Mapping[str, RequestWaits]:
    """
    Return, by site, how long any request would wait that is made now.

    Each queue is asked once, all at a time; the answers hold for requests of any size. See
    :func:`wait_forecasts`.
    """
    from bursar.runs.pool_controller import read_waits

    past = read_waits(runs)
    # A queue once seen is projected anew for each request, without another question.
    queues = _ask_all(
        [site for site in sites if site.batch is not None],
        lambda site: site.queue.wait_forecast,
        history=runs,
    )

    def waits_at(name: str) -> RequestWaits:
        def waits(processors: int, seconds: float) -> "WaitForecast | None":
            ask = queues.get(name)
            live = None if ask is None or isinstance(ask, SiteError) else ask(processors, seconds)
            calibrated = live if live is not None and live.seen else None
            return calibrated or past.forecast(name, processors, seconds) or live

        return waits

    return {site.name: waits_at(site.name) for site in sites}


def wait_forecasts(
    sites: Sequence[SiteFacts], processors: int, seconds: float, runs: Path
) -> "Mapping[str, WaitForecast | None]":
    """
    Return how long a request would wait that is made now, for each site.

    Queues of batch schedulers are asked, all at a time. Where that gives a forecast that earlier
    waits have calibrated (:meth:`bursar.sites.queue_observer.QueueObserver.wait_forecast`), it is
    the answer. Otherwise, and for all other kinds of sites, the answer is the history of requests
    of earlier runs, and without such a history the projection of the queue as it is.

    Parameters
    ----------
    processors, seconds
        What the request would ask for.
    runs
        Folder of the runs, where histories of waits are kept.

    Returns
    -------
    Mapping
        By name of the site; None where nothing is known. Sample it by ``sample(count, rng)``, read
        it by ``wait_quantiles(shares)``: seconds.
    """
    return {name: waits(processors, seconds) for name, waits in queue_waits(sites, runs).items()}


def _offer(site: "BatchSite | RemoteSite") -> SiteFacts:
    return replace(site.facts, slots=site.offers())


def _status_of_site(
    site: "BatchSite | RemoteSite | DaskSite | SshSite",
) -> tuple[SiteFacts, SiteStatus]:
    return site.facts, site.status()


def _ask_all(
    sites: Sequence[SiteFacts], what: Callable[[Any], T], history: Path | None = None
) -> dict[str, T | SiteError]:
    async def ask_all() -> list[T | SiteError]:
        # At once, as each may take seconds: the slowest decides, not the sum.
        return list(await asyncio.gather(*(_ask(site, what, history) for site in sites)))

    if not sites:
        return {}
    answers = run_outside_loop(lambda: asyncio.run(ask_all()))
    return dict(zip((site.name for site in sites), answers, strict=True))


async def _ask(facts: SiteFacts, what: Callable[[Any], T], history: Path | None) -> T | SiteError:
    # Sites keep files of their pilots in a folder; a question leaves none behind.
    with tempfile.TemporaryDirectory() as folder:
        try:
            # Each kind of site where it is wanted: most campaigns run on this machine alone, and
            # to load all kinds takes a tenth of a second.
            if facts.remote is not None:
                from bursar.sites.remote.lot_site import service_site

                service = service_site(facts, run="ask", folder=Path(folder))
                async with service.in_touch():
                    await service.refresh()
                    return what(service)
            if facts.dask is not None:
                from bursar.sites.dask.dask_site import DaskSite

                cluster = DaskSite(facts, "ask", Path(folder))
                async with cluster.opened():
                    return what(cluster)
            if facts.ssh is not None:
                from bursar.sites.ssh_site import SshSite

                # Several commands may ask at a time, each over connections of its own.
                machines = SshSite(facts, run=secrets.token_hex(8))
                async with machines.connected():
                    await machines.refresh()
                    return what(machines)
            from bursar.sites.batch import BatchSite

            site = BatchSite(facts, run="ask", folder=Path(folder), history=history)
            await site.refresh()
            return what(site)
        except InputError as error:  # a package is missing
            return SiteError(f"{facts.name}: {error.message}")
        except SiteError as error:
            # A service is named by what it says itself.
            problem = str(error).removeprefix(f"{facts.name}: ")
            return SiteError(f"{facts.name}: {problem}", transient=error.transient)
