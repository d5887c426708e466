"""Simulates the transfer of files to sites, over links that all transfers share."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from bursar.model.matching import Replica
from bursar.model.network import NetworkLink, Topology
from bursar.model.site import SiteFacts
from bursar.model.task import Task
from bursar.replicas.stager import AT_ONCE
from bursar.simulation.flow_network import Flow, FlowNetwork


class SimulatedDataStaging:
    """
    Moves files as :class:`bursar.broker.brokered_scheduler.FileStaging` says, in simulated time.

    What was brought to a site stays there. Sites without a link between them share their
    files, as elsewhere. Over one link go as many files at once as in a real run, and share it.

    Parameters
    ----------
    copies
        Sites of each logical file's copies at the begin.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        sites: Sequence[SiteFacts],
        copies: Mapping[str, Sequence[Replica]],
    ) -> None:
        self._tasks = tasks
        self._sites = {site.name: site for site in sites}
        self._copies: dict[str, dict[str, Replica]] = {
            name: {copy.site: copy for copy in found} for name, found in copies.items()
        }
        self._coming: dict[tuple[str, str], list[Callable[[str], None]]] = {}
        self._lines: dict[tuple[str, str], _LinkQueue] = {}
        self._network: FlowNetwork | None = None

    def copies(self, name: str) -> list[Replica]:
        """Return the copies of a logical file that exist now."""
        return list(self._copies.get(name, {}).values())

    def bring(self, task: int, site: str, done: Callable[[str], None]) -> None:
        """Bring a task's inputs to a site; ``done`` is never called from within this call."""
        missing = [
            name for name in self._tasks[task].data if site not in self._copies.get(name, {})
        ]
        left = len(missing)
        problems: list[str] = []

        def on_copied(problem: str) -> None:
            nonlocal left
            left -= 1
            if problem:
                problems.append(problem)
            if not left:
                done("; ".join(problems))

        if not missing:
            asyncio.get_running_loop().call_soon(done, "")
        for name in missing:
            self._fetch(name, site, on_copied)

    def keep(self, task: int, site: str, done: Callable[[str], None]) -> None:
        """Record a task's registered outputs at the task's site."""
        sizes = {file.name: file.size for file in self._tasks[task].outputs}
        for output, name in self._tasks[task].registers.items():
            made = Replica(name=name, site=site, url="", size=sizes.get(output))
            self._copies.setdefault(name, {})[site] = made
        asyncio.get_running_loop().call_soon(done, "")

    def release(self, task: int) -> None:
        """Do nothing: files that were brought stay."""

    def _fetch(self, name: str, site: str, on_copied: Callable[[str], None]) -> None:
        waiting = self._coming.get((name, site))
        if waiting is not None:
            # One transfer for all tasks that want the file at this site, as the real stager does.
            waiting.append(on_copied)
            return
        self._coming[name, site] = [on_copied]
        loop = asyncio.get_running_loop()
        network = self._on(loop)
        copies = self._copies.get(name, {})
        linked = [copy for copy in copies.values() if site in self._links(copy.site)]
        if not copies:
            loop.call_soon(self._on_copied, name, site, None, f"{name}: no copy of it is known")
        elif len(linked) < len(copies):  # one is at a site that shares its files with this one
            copy = next(copy for copy in copies.values() if copy not in linked)
            loop.call_soon(self._on_copied, name, site, copy, "")
        else:

            def seconds(copy: Replica) -> float:
                share = network.share(copy.site, site)
                return network.latency(copy.site, site) + (copy.size or 0) / share

            best = min(linked, key=seconds)
            line = self._lines.setdefault((best.site, site), _LinkQueue())
            line.waiting.append((name, best))
            self._send(line, site, network)

    def _send(self, line: "_LinkQueue", site: str, network: FlowNetwork) -> None:
        """Start as many waiting transfers as a link allows."""
        while line.waiting and line.under_way < AT_ONCE:
            name, copy = line.waiting.popleft()
            line.under_way += 1
            arrived = partial(self._arrived, line, name, site, copy, network)
            network.send(copy.site, site, copy.size or 0, arrived)

    def _arrived(
        self,
        line: "_LinkQueue",
        name: str,
        site: str,
        copy: Replica,
        network: FlowNetwork,
        flow: Flow,
    ) -> None:
        line.under_way -= 1
        # The next one before callers are told, who may ask for more: a file that waits already
        # goes first.
        self._send(line, site, network)
        self._on_copied(name, site, copy, "")

    def _on_copied(self, name: str, site: str, copy: Replica | None, problem: str) -> None:
        if copy is not None:
            self._copies[name][site] = Replica(
                name=name, site=site, url=copy.url, size=copy.size, checksum=copy.checksum
            )
        for on_copied in self._coming.pop((name, site)):
            on_copied(problem)

    def _links(self, site: str) -> Mapping[str, object]:
        facts = self._sites.get(site)
        return {} if facts is None else facts.links

    def _on(self, loop: asyncio.AbstractEventLoop) -> FlowNetwork:
        """The network, made on the loop of the simulation."""
        if self._network is None:
            wires = [
                NetworkLink(
                    source=site.name,
                    target=target,
                    bandwidth=link.bandwidth,
                    latency=link.latency,
                    duplex="one-way",
                )
                for site in self._sites.values()
                for target, link in site.links.items()
            ]
            topology = Topology(nodes=tuple(self._sites), wires=tuple(wires))
            self._network = FlowNetwork(topology, loop)
        return self._network


@dataclass(slots=True, eq=False)
class _LinkQueue:
    """Holds the transfers of one link, both under way and waiting."""

    under_way: int = 0
    waiting: deque[tuple[str, Replica]] = field(default_factory=deque)
