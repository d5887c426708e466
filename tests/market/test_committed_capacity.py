"""What an owner has promised, against a count of all promises at each question."""

import math
from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thoroughness import examples

from bursar.market.pricing import Commitment, CommittedCapacity

PROCESSORS = 5
TIMES = st.integers(0, 15).map(float)
KEYS = st.sampled_from("abcdef")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), KEYS, st.integers(1, 6), TIMES, TIMES),
        st.tuples(st.just("restore"), KEYS, st.integers(1, 6), TIMES, TIMES),
        st.tuples(st.just("shorten"), KEYS, TIMES),
        st.tuples(st.just("release"), KEYS),
        st.tuples(st.just("forget"), TIMES, TIMES),
        st.tuples(st.just("set"), KEYS, st.integers(1, 6), TIMES, TIMES),
    ),
    max_size=15,
)


def used(commitments: Iterable[Commitment], moment: float) -> int:
    """Return the processors committed at a moment."""
    return sum(c.processors for c in commitments if c.start <= moment < c.end)


def free(commitments: Iterable[Commitment], start: float, end: float) -> int:
    """Return the fewest processors free from start to end; all times are whole."""
    moments = [start + i for i in range(max(1, math.ceil(end - start)))]
    return PROCESSORS - max(used(commitments, moment) for moment in moments)


@given(STEPS, TIMES, st.integers(1, 6), st.integers(1, 6))
@settings(max_examples=examples(300))
def test_every_answer_is_what_the_promises_leave(
    steps: list[tuple[str, ...]], moment: float, seconds: int, processors: int
) -> None:
    capacity = CommittedCapacity(PROCESSORS)
    until = 10.0  # when offers of this test lapse
    for name, *given_ in steps:
        before = dict(capacity.by_key)
        match name, given_:
            case "commit", [key, count, start, end]:
                made = capacity.commit(key, count, start, end, until)
                fits = key not in before and count <= free(before.values(), start, end)
                assert made == fits
                assert capacity.by_key == (
                    {**before, key: Commitment(count, start, end, until)} if fits else before
                )
            case "restore", [key, count, start, end]:
                capacity.restore(key, count, start, end)
                assert capacity.by_key == {**before, key: Commitment(count, start, end)}
            case "shorten", [key, end]:
                capacity.shorten(key, end)
                if key in before:
                    short = Commitment(
                        before[key].processors,
                        before[key].start,
                        min(end, before[key].end),
                        before[key].until,
                    )
                    assert capacity.by_key.get(key) == (short if end > short.start else None)
            case "release", [key]:
                capacity.release(key)
                assert capacity.by_key == {k: c for k, c in before.items() if k != key}
            case "forget", [now, begun]:
                capacity.forget(now, begun)
                assert capacity.by_key == {
                    k: c for k, c in before.items() if c.end > begun and c.until > now
                }
            case _, [key, count, start, end]:
                capacity.set_commitments({key: Commitment(count, start, end)})
                assert list(capacity.by_key) == [key]
        now = capacity.commitments
        assert capacity.used(moment) == used(now, moment)
        assert capacity.free(moment, moment + seconds) == free(now, moment, moment + seconds)
        held = sum(used(now, moment + i) for i in range(seconds))
        assert capacity.utilisation(moment, moment + seconds) == min(
            1.0, held / (PROCESSORS * seconds)
        )
        starts = [float(t) for t in range(int(moment), 17)]
        fitting = (t for t in starts if free(now, t, t + seconds) >= processors)
        found = capacity.first_fit(processors, seconds, moment, 16.0)
        assert found == next(fitting, None)
