"""Many workers: a pool knows who has room, without looking at all of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.test_task_scheduler import Owned, end

from bursar.engine.fair_turns import RankedHeap
from bursar.engine.pool_demand import to_take_back
from bursar.engine.task_scheduler import TaskScheduler
from bursar.engine.worker_slots import WorkerSlot

KEYS = st.integers(0, 5)
CHANGES = st.lists(st.tuples(KEYS, st.none() | st.tuples(st.integers(0, 3), st.integers(0, 3))))


@given(CHANGES)
def test_the_first_of_a_heap_is_that_of_a_plain_search(
    changes: list[tuple[int, tuple[int, int] | None]],
) -> None:
    """Ranks that change often, and keys that go and come back; None: the key goes."""
    heap: RankedHeap[int] = RankedHeap()
    plain: dict[int, tuple[float, int]] = {}
    for key, rank in changes:
        if rank is None:
            heap.discard(key)
            plain.pop(key, None)
        else:
            heap.put(key, rank)
            plain[key] = rank
        first = heap.first()
        assert len(heap) == len(plain)
        assert (first is None) == (not plain)
        if first is not None:
            assert first[0] == min(plain.values()) == plain[first[1]]


def test_the_entries_of_a_heap_are_not_kept_for_ever() -> None:
    """Of 10,000 changes of ten ranks, a few dozen entries are left."""
    heap: RankedHeap[int] = RankedHeap()
    for change in range(10_000):
        heap.put(change % 10, (change, 0))
    assert len(heap._heap) <= 64 + 3 * 10
    assert heap.first() == ((9_990, 0), 0)


def looked_at(workers: int, monkeypatch: pytest.MonkeyPatch, *, are_busy: bool) -> int:
    """Count how often a fill after one event asks a worker for its free processors."""
    scheduler: TaskScheduler[Owned] = TaskScheduler(1)
    owner = Owned(1, "ann")
    for number in range(workers):
        scheduler.join(WorkerSlot(f"w{number}", "shared", "", 1))
    for _ in range(2 * workers if are_busy else 1):
        owner.add(1, None)
    scheduler.enlist(owner)
    assert len(scheduler.fill("shared", 0.0)) == (workers if are_busy else 1)
    # All have changed by this first fill, and are looked at once more.
    assert to_take_back(scheduler.pools["shared"], 0.0) == []
    (claim, *_) = scheduler.claims.values()
    end(scheduler, claim, 1.0)
    if not are_busy:
        owner.add(1, None)
        scheduler.enlist(owner)
    count = 0
    free = WorkerSlot.free.fget

    def counting(worker: WorkerSlot[Owned]) -> int:
        nonlocal count
        count += 1
        assert free is not None
        return int(free(worker))

    with monkeypatch.context() as patch:
        patch.setattr(WorkerSlot, "free", property(counting))
        assert len(scheduler.fill("shared", 1.0)) == 1
        assert to_take_back(scheduler.pools["shared"], 1.0) == []
    return count


@pytest.mark.parametrize("are_busy", [True, False])
def test_a_fill_looks_at_no_worker_that_nothing_happened_to(
    monkeypatch: pytest.MonkeyPatch, are_busy: bool
) -> None:
    """Known answer: as many of a thousand workers as of ten, be these busy or idle."""
    few = looked_at(10, monkeypatch, are_busy=are_busy)
    many = looked_at(1_000, monkeypatch, are_busy=are_busy)
    assert 0 < few == many
