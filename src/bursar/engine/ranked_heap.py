"""A heap of keys whose ranks change."""

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

Rank = tuple[float, int]
"""What orders keys, the smallest first; the second number decides between equal ones."""


class RankedHeap(Generic[Key]):
    """
    Finds the key with the smallest rank, where ranks change often.

    A change costs as much as an insertion, whatever the number of keys: the former entry stays in
    the heap, and is skipped when its turn comes.
    """

    def __init__(self) -> None:
        self._ranks: dict[Key, Rank] = {}
        self._heap: list[tuple[Rank, int, Key]] = []
        self._pushed = 0

    def __len__(self) -> int:
        return len(self._ranks)

    def __contains__(self, key: Key) -> bool:
        return key in self._ranks

    def put(self, key: Key, rank: Rank) -> None:
        """Add a key, or change its rank."""
        if self._ranks.get(key) == rank:
            return
        self._ranks[key] = rank
        # Stale entries are bounded by a rebuild, whose cost is shared by the changes that made it
        # necessary. The number of the push breaks ties: keys need not be comparable.
        if len(self._heap) > 64 + 2 * len(self._ranks):
            self._heap = [(rank, i, key) for i, (key, rank) in enumerate(self._ranks.items())]
            heapq.heapify(self._heap)
        else:
            self._pushed += 1
            heapq.heappush(self._heap, (rank, self._pushed, key))

    def discard(self, key: Key) -> None:
        """Remove a key, if it is there."""
        self._ranks.pop(key, None)

    def first(self) -> tuple[Rank, Key] | None:
        """Return the smallest rank and its key; None: there is no key."""
        heap = self._heap
        while heap:
            rank, _, key = heap[0]
            if self._ranks.get(key) == rank:
                return rank, key
            heapq.heappop(heap)
        return None
