"""Slots of which only so many processors may be held together."""

from hypothesis import given
from hypothesis import strategies as st

from bursar.model.slot import Slot, limit_offers

SLOTS = st.lists(
    st.builds(
        Slot,
        start=st.integers(0, 9).map(float),
        duration=st.integers(1, 9).map(float),
        processors=st.integers(1, 6),
    ),
    max_size=8,
)


@given(SLOTS, st.integers(0, 12))
def test_no_moment_has_more_and_nothing_more_could_be_given(slots: list[Slot], most: int) -> None:
    def held(kept: list[Slot], moment: int) -> int:
        return sum(slot.processors for slot in kept if slot.start <= moment < slot.end)

    kept = limit_offers(slots, most)

    assert all(held(kept, moment) <= most for moment in range(20))
    left = iter(kept)
    one = next(left, None)
    before: list[Slot] = []
    for slot in slots:
        room = most - max(held(before, moment) for moment in range(int(slot.start), int(slot.end)))
        expected = min(room, slot.processors)
        if expected > 0:
            assert one is not None
            assert (one.start, one.duration, one.processors) == (
                slot.start,
                slot.duration,
                expected,
            )
            before.append(one)
            one = next(left, None)
    assert one is None


def test_slots_that_follow_one_another_share_their_processors_with_one_beside_them() -> None:
    """Two processors from 0 to 10, two from 10 to 20: of 4, two are left from 0 to 20."""
    offers = [
        Slot(start=0.0, duration=10.0, processors=2),
        Slot(start=10.0, duration=10.0, processors=2),
        Slot(start=0.0, duration=20.0, processors=4),
    ]

    assert [slot.processors for slot in limit_offers(offers, 4)] == [2, 2, 2]
