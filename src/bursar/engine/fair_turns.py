"""Who comes next: fair queuing of users and instances, and a heap of keys whose ranks change."""

import heapq
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class FairQueue(Generic[Key]):
    """
    Fair shares of something that takes time, by start-time fair queuing [1]_.

    The key that has had least is served first. The tag of a key grows by the cost of each service
    that the key gets; the key with the smallest tag is served, and that tag is the virtual time.
    A key that comes back after a while without work starts at the virtual time: shares are not
    saved up. One queue orders the users of a pool, and one for each user orders the user's
    instances, as in [2]_, section 3. The cost of a task is known only when the task has ended:
    the estimate that was charged is corrected then.

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
            # S = max(v, F) of start-time fair queuing: a key that was idle starts level with those
            # being served, one that has had more than its share keeps its debt.
            self._tags[key] = max(self._tags.get(key, 0.0), self._virtual)
            self._push(key)

    def rest(self, key: Key) -> None:
        """Remove a key that has nothing more to be served for now."""
        if key in self._waiting:
            del self._waiting[key]
            # A tag at or below the virtual time says nothing that wait() would not set again; a
            # later one is a debt, which going to rest must not wipe out.
            if self._tags[key] <= self._virtual:
                del self._tags[key]
            # Debts that the virtual time has passed meanwhile go too, else tags of all users there
            # ever were would be kept.
            if not self._waiting:
                self._heap.clear()
                self._tags = {k: tag for k, tag in self._tags.items() if tag > self._virtual}

    def first(self) -> Key | None:
        """Return the key to be served next; None: none waits."""
        heap = self._heap
        while heap:
            tag, _, key = heap[0]
            # An entry whose tag has changed since is stale: a newer entry of the key is in the
            # heap. Skipping it here is cheaper than finding it at each change.
            if key in self._waiting and self._tags[key] == tag:
                return key
            heapq.heappop(heap)
        return None

    def in_order(self) -> list[Key]:
        """Return all waiting keys, the one to be served next first."""
        return sorted(self._waiting, key=self._tags.__getitem__)

    def tag(self, key: Key) -> float:
        """Return the tag of a waiting key: the least is served next."""
        return self._tags[key]

    def charge(self, key: Key, cost: float) -> None:
        """Charge a key that is served with a known or estimated cost."""
        tag = self._tags.get(key, self._virtual)
        # The virtual time is the start tag of the key in service; max, as corrections may have
        # moved tags back and time must not run backwards.
        self._virtual = max(self._virtual, tag)
        self._set(key, tag + cost)

    def correct(self, key: Key, cost: float) -> None:
        """Add the difference of true and estimated cost to the tag of a key that is still known."""
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
        # Stale entries are bounded by a rebuild, whose cost is shared by the pushes that made it
        # necessary. The number of the push breaks ties: keys need not be comparable.
        if len(self._heap) > 64 + 4 * len(self._waiting):
            self._heap = [(self._tags[k], i, k) for i, k in enumerate(self._waiting)]
            heapq.heapify(self._heap)


ProjectOf = Callable[[str], tuple[str, float]]
"""Returns the project of a user, and the project's weight; a user without one is one's own."""


class ProjectTurns(FairQueue[str]):
    """
    Turns of users whose projects have weights.

    Projects that have something waiting are served in proportion to their weights, however many
    users each has, and the users of a project evenly: a user is charged at the inverse of the
    share that the project's weight leaves to each of its waiting users. What is given is not taken
    back: a project that comes to wait gets its share of the processors that become free.

    Parameters
    ----------
    project_of
        Project and weight of each user. Weights are positive.
    """

    def __init__(self, project_of: ProjectOf) -> None:
        super().__init__()
        self._project_of = project_of
        self._members: Counter[str] = Counter()  # waiting users, by project

    def wait(self, key: str) -> None:
        """Add a user that has something to be served."""
        if key not in self:
            self._members[self._project_of(key)[0]] += 1
        super().wait(key)

    def rest(self, key: str) -> None:
        """Remove a user that has nothing more to be served for now."""
        if key in self:
            project, _ = self._project_of(key)
            self._members[project] -= 1
            if not self._members[project]:
                del self._members[project]
        super().rest(key)

    def charge(self, key: str, cost: float) -> None:
        """Charge a user that is served with a known or estimated cost."""
        super().charge(key, cost * self._rate(key))

    def correct(self, key: str, cost: float) -> None:
        """Add the difference of true and estimated cost to what a known user has had."""
        super().correct(key, cost * self._rate(key))

    def _rate(self, key: str) -> float:
        project, weight = self._project_of(key)
        return max(1, self._members[project]) / weight


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
