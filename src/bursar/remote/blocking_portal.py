"""An event loop in a separate thread, for blocking callers."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from concurrent.futures import CancelledError
from typing import Any, TypeVar

T = TypeVar("T")


class BlockingPortal:
    """
    Runs coroutines in a separate thread; also from notebooks, where a loop is running already.

    :meth:`close` ends the thread.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="bursar-client", daemon=True
        )
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        """Whether the thread has ended."""
        return self._loop.is_closed()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and return the result; an interrupt of the caller cancels the work."""
        if self._loop.is_closed():
            work.close()
            raise RuntimeError("the client is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        # The coroutine would go on in its thread, and an upload with it, after the caller has given
        # up.
        except (KeyboardInterrupt, CancelledError):
            future.cancel()
            raise

    def iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """Yield the items of an asynchronous generator, which is closed with this one."""
        try:
            while (some := self.run(_next(items))) is not None:
                yield some[0]
        finally:
            if not self._loop.is_closed():
                self.run(_close(items))

    def close(self) -> None:
        """End the thread."""
        if not self._loop.is_closed():
            # While the loop still runs: threads that read files for uploads report to it.
            self.run(self._loop.shutdown_default_executor())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


async def _next(items: AsyncGenerator[T, None]) -> tuple[T] | None:
    # In a tuple, as an item could be None, which stands for the end.
    async for item in items:
        return (item,)
    return None


async def _close(items: AsyncGenerator[T, None]) -> None:
    while getattr(items, "ag_running", False):  # who was interrupted is on its way out
        await asyncio.sleep(0)
    await items.aclose()
