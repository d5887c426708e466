"""Pilots that are submitted together are gathered until all of the bundle are ready."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

TOGETHER = 0.05
"""Seconds within which the pilots of one bundle are asked for."""

T = TypeVar("T")


class _SubmissionBundle(Generic[T]):
    def __init__(self, copies: int) -> None:
        self.copies = copies
        self.arrived = 0  # so far
        self.on_way = 0  # arrived, but not ready yet
        self.ready: list[T] = []
        self.is_late = False


class SubmissionBundles(Generic[T]):
    """
    Gathers the pilots of a bundle until all that arrived in time are ready.

    Parameters
    ----------
    hand_in
        Called with the ready pilots of a bundle when no more are to come.
    """

    def __init__(self, hand_in: Callable[[Sequence[T]], None]) -> None:
        self._hand_in = hand_in
        self._bundles: dict[str, _SubmissionBundle[T]] = {}

    def arrive(self, name: str, copies: int) -> None:
        """
        Announce a pilot of a bundle; :meth:`ready` or :meth:`withdraw` must follow.

        Parameters
        ----------
        copies
            Number of pilots expected; those later than 0.05 s after the first are not awaited.
        """
        bundle = self._bundles.get(name)
        if bundle is None:
            bundle = self._bundles[name] = _SubmissionBundle(copies)
            # A member may never come (its money was refused): the others go without it after a
            # moment.
            asyncio.get_running_loop().call_later(TOGETHER, self._waited, name, bundle)
        bundle.arrived += 1
        bundle.on_way += 1

    def ready(self, name: str, one: T) -> None:
        """Add an announced pilot that can be submitted."""
        bundle = self._bundles[name]
        bundle.ready.append(one)
        self._arrived(name, bundle)

    def withdraw(self, name: str) -> None:
        """Withdraw an announced pilot."""
        self._arrived(name, self._bundles[name])

    def _arrived(self, name: str, bundle: "_SubmissionBundle[T]") -> None:
        bundle.on_way -= 1
        self._submit_if_complete(name, bundle)

    def _waited(self, name: str, bundle: "_SubmissionBundle[T]") -> None:
        bundle.is_late = True
        if self._bundles.get(name) is bundle:
            self._submit_if_complete(name, bundle)

    def _submit_if_complete(self, name: str, bundle: "_SubmissionBundle[T]") -> None:
        # One that has arrived is waited for however long its credential takes to write.
        if bundle.on_way or not (bundle.is_late or bundle.arrived >= bundle.copies):
            return
        # Before the call, so that a pilot that arrives during it begins a new bundle.
        del self._bundles[name]
        if bundle.ready:
            self._hand_in(bundle.ready)
