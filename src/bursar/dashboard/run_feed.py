"""What goes on in a run, told to all who look at its page: read once, encoded once."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from bursar.dashboard.run_page import PageEvent, RunPage
from bursar.memory import collector_paused
from bursar.model.errors import BursarError
from bursar.runs.detached_runs import watch_run
from bursar.runs.folder import RunFolder
from bursar.supervisor import TaskSupervisor

T = TypeVar("T")

INTERVAL = 0.5
"""Seconds between two looks at the journal of a run that goes on."""

SHARE = 0.05
"""Part of a processor that reading a run on may take; larger runs are looked at less often."""

IDLE = 2.0
"""Seconds between two looks at a run that nobody carries out."""

HEARTBEAT = 15.0
"""Seconds of silence after which a comment is sent, so that a broken connection is found."""

_KEPT = 240
"""Steps that are kept for viewers whose document is a little older."""

_MOST_WAITING = 64
"""Steps that a viewer may leave unread; one that reads on later begins anew."""


@dataclass(frozen=True, slots=True)
class FeedStep:
    """
    Events that lead from one version of a page to another, as they are sent.

    A ``before`` of None: they change no version, so that a late viewer can do without.
    """

    before: int | None
    after: int
    frames: bytes


def frame(event: str, data: Any, version: int | None = None) -> bytes:
    """Return a server-sent event; its id is the version of the page after the event."""
    head = f"event: {event}\n" if version is None else f"id: {version}\nevent: {event}\n"
    return head.encode() + b"data: " + msgspec.json.encode(data) + b"\n\n"


class RunFeed:
    """
    Reads one run on while somebody looks, and tells all viewers.

    Parameters
    ----------
    folder
        Folder of the run.
    tasks
        Owner of the task that reads.
    """

    def __init__(self, folder: RunFolder, tasks: TaskSupervisor) -> None:
        self.folder = folder
        self.last_used = time.monotonic()
        self._tasks = tasks
        self._page: RunPage | None = None
        self._turn = asyncio.Lock()  # one thread at a time works on the page
        self._steps: deque[FeedStep] = deque(maxlen=_KEPT)
        self._viewers: set[asyncio.Queue[FeedStep | None]] = set()
        self._snapshot: FeedStep | None = None
        self._is_reading = False
        self._encoded: tuple[tuple[int, bool], bytes] | None = None

    @property
    def is_watched(self) -> bool:
        """Whether anybody looks."""
        return bool(self._viewers)

    async def document(self) -> bytes:
        """
        Return the run's page as JSON, up to date.

        Raises
        ------
        BursarError
            When part of the run cannot be read.
        """
        self.last_used = time.monotonic()
        if self._page is not None and not self._is_reading:
            # Nobody has read on meanwhile.
            await self._read_on(whole=True)
        return await self._work(self._encode)

    async def page(self) -> RunPage:
        """Return the run, read on if nobody else does."""
        self.last_used = time.monotonic()
        if not self._is_reading:
            await self._read_on()
        return await self._work(lambda page: page)

    async def events(self, version: int) -> AsyncGenerator[bytes, None]:
        """
        Yield events from a version of the page on, as they are sent, without an end.

        The first is ``hello``, or ``reload`` where the feed cannot go on from that version; then
        the viewer fetches the page again.
        """
        queue: asyncio.Queue[FeedStep | None] = asyncio.Queue()
        page = await self.page()
        self._viewers.add(queue)
        try:
            missed = self._since(version, page.version)
            if missed is None:
                yield frame("reload", {"version": page.version})
                return
            yield frame("hello", {"version": version, "live": page.is_live})
            for old in missed:
                yield old.frames
            if self._snapshot is not None:
                yield self._snapshot.frames
            if not self._is_reading:
                self._is_reading = True
                self._tasks.start(self._read(), name=f"read run {self.folder.name}")
            while True:
                try:
                    async with asyncio.timeout(HEARTBEAT):
                        step = await queue.get()
                except TimeoutError:
                    yield b": still here\n\n"
                    continue
                if step is None or queue.qsize() > _MOST_WAITING:
                    yield frame("reload", {"version": page.version})
                    return
                yield step.frames
        finally:
            self._viewers.discard(queue)
            self.last_used = time.monotonic()

    def _since(self, version: int, present: int) -> list[FeedStep] | None:
        """Return the steps from a version to the present one; None: some are not kept."""
        if version == present:
            return []
        steps = [step for step in self._steps if step.before is not None and step.after > version]
        if not steps or steps[0].before != version or steps[-1].after != present:
            return None
        return steps

    async def _read(self) -> None:
        """Read the run on as long as somebody looks."""
        try:
            async with asyncio.TaskGroup() as both:
                views = both.create_task(self._watch())
                await self._follow()
                views.cancel()
        finally:
            self._is_reading = False
            self._snapshot = None

    async def _watch(self) -> None:
        """Pass on what the run's process shows, again for each process that carries it out."""
        while True:
            async for update in watch_run(self.folder):
                if update.snapshot is not None and self._page is not None:
                    version = self._page.version
                    self._snapshot = FeedStep(None, version, frame("snapshot", update.snapshot))
                    self._tell(self._snapshot)
            await asyncio.sleep(INTERVAL)

    async def _follow(self) -> None:
        was_live, refreshed, price = True, time.monotonic(), 0.0
        stale = False
        while self._viewers:
            began = time.monotonic()
            try:
                changed = await self._read_on()
            except BursarError:  # a folder that was deleted, a journal that was changed
                for viewer in self._viewers:
                    viewer.put_nowait(None)
                return
            is_live = await self._work(lambda page: page.is_live)
            stale = stale or changed
            if stale and (began - refreshed > price / SHARE or not is_live):
                begin = time.process_time()
                await self._tell_of(lambda page: [page.refresh()])
                refreshed, price = time.monotonic(), time.process_time() - begin
                stale = False
            if was_live and not is_live:
                self._tell(self._step([("over", {})]))
            elif is_live and not was_live:
                self._tell(self._step([("live", {})]))
            was_live = is_live
            spent = time.monotonic() - began
            await asyncio.sleep(max(INTERVAL if is_live else IDLE, spent / SHARE - spent))

    async def _read_on(self, *, whole: bool = False) -> bool:
        """
        Read what the run has more and tell the viewers; return whether there was more.

        Parameters
        ----------
        whole
            Whether what the page shows of all attempts together is computed anew if there was.
        """

        def read(page: RunPage) -> list[PageEvent]:
            found = page.read_on()
            return [*found, page.refresh()] if found and whole else found

        return await self._tell_of(read)

    async def _tell_of(self, work: Callable[[RunPage], list[PageEvent]]) -> bool:
        def step(page: RunPage) -> FeedStep | None:
            before = page.version
            found = work(page)
            if not found:
                return None
            frames = b"".join(frame(name, data, page.version) for name, data in found)
            return FeedStep(before, page.version, frames)

        made = await self._work(step)
        if made is None:
            return False
        self._steps.append(made)
        self._tell(made)
        return True

    def _step(self, events: list[tuple[str, Mapping[str, Any]]]) -> FeedStep:
        assert self._page is not None
        return FeedStep(None, self._page.version, b"".join(frame(*one) for one in events))

    def _tell(self, step: FeedStep) -> None:
        for viewer in self._viewers:
            if viewer.qsize() <= _MOST_WAITING:  # one more is the sign that it was left behind
                viewer.put_nowait(step)

    async def _work(self, work: Callable[[RunPage], T]) -> T:
        """Do work on the page in a thread, one after the other; the first call reads the run."""

        def locked() -> T:
            # The page of a large run is made of many objects, which stay.
            with collector_paused():
                if self._page is None:
                    self._page = RunPage(self.folder)
                return work(self._page)

        async with self._turn:
            return await asyncio.to_thread(locked)

    def _encode(self, page: RunPage) -> bytes:
        state = page.version, page.is_live
        if self._encoded is None or self._encoded[0] != state:
            self._encoded = state, msgspec.json.encode(page.document())
        return self._encoded[1]
