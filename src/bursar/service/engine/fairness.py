"""Fair queuing: which of the waiting users or instances is served next."""

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class FairQueue(Generic[Key]):
    """
    Fair shares of something that takes time, by start-time fair queuing [1]_.

    Who has had least comes first. A tag grows by what its owner has had; the one with the
    smallest tag is served, and that tag is the virtual time. Whoever comes back after a while
    without work starts at the virtual time: nothing is saved up. Used once for the users of a
    pool and once for the instances of each user, as in [2]_, section 3. What a task costs is
    known when it has ended: the guess by which it was charged is put right then.

    References
    ----------
    .. [1] Goyal, Vin, Cheng (1996). Start-time Fair Queuing: a scheduling algorithm for
       integrated services packet switching networks. SIGCOMM '96: 157-168.
    .. [2] Goyal, Guo, Vin (1996). A hierarchical CPU scheduler for multimedia operating systems.
       OSDI '96: 107-121.
    """

    def __init__(self) -> None:
        self._virtual = 0.0
        self._tags: dict[Key, float] = {}
        self._waiting: dict[Key, None] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._pushed = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, key: Key) -> bool:
        return key in self._waiting

    def wait(self, key: Key) -> None:
        """Add a key that has something to be served."""
        if key not in self._waiting:
            self._waiting[key] = None
            self._tags[key] = max(self._tags.get(key, 0.0), self._virtual)
            self._push(key)

    def rest(self, key: Key) -> None:
        """Remove a key that has nothing more to be served for now."""
        if key in self._waiting:
            del self._waiting[key]
            if self._tags[key] <= self._virtual:
                del self._tags[key]
            if not self._waiting:
                self._heap.clear()
                self._tags = {k: tag for k, tag in self._tags.items() if tag > self._virtual}

    def first(self) -> Key | None:
        """Return the key to be served next; None: none waits."""
        heap = self._heap
        while heap:
            tag, _, key = heap[0]
            if key in self._waiting and self._tags[key] == tag:
                return key
            heapq.heappop(heap)
        return None

    def in_order(self) -> list[Key]:
        """Return all waiting keys, the one to be served next first."""
        return sorted(self._waiting, key=self._tags.__getitem__)

    def charge(self, key: Key, cost: float) -> None:
        """Charge a key that is served with a known or estimated cost."""
        tag = self._tags.get(key, self._virtual)
        self._virtual = max(self._virtual, tag)
        self._set(key, tag + cost)

    def correct(self, key: Key, cost: float) -> None:
        """Add the difference of true and estimated cost to a key, if its tag is still kept."""
        if key in self._tags and cost:
            self._set(key, self._tags[key] + cost)

    def drop(self, key: Key) -> None:
        """Forget a key for good."""
        self.rest(key)
        self._tags.pop(key, None)

    def _set(self, key: Key, tag: float) -> None:
        self._tags[key] = tag
        if key in self._waiting:
            self._push(key)

    def _push(self, key: Key) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (self._tags[key], self._pushed, key))
        if len(self._heap) > 64 + 4 * len(self._waiting):
            self._heap = [(self._tags[k], i, k) for i, k in enumerate(self._waiting)]
            heapq.heapify(self._heap)
