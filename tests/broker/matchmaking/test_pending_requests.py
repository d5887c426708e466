"""Waits that count our own jobs, against hand-computed cases and a plain twin."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker.matchmaking.broker_rig import site
from tests.thoroughness import examples

from bursar.broker.matchmaking.inflight import ASSUMED_RUNTIME, InFlightJobs
from bursar.broker.matchmaking.status_table import PublishedStatus

NAN = math.nan


def said(*sites: tuple[float, float, int], waiting: int = 0) -> PublishedStatus:
    """Moment, published wait and free processors of each site."""
    at, wait, free = (np.array(column, dtype=np.float64) for column in zip(*sites, strict=True))
    return PublishedStatus(at, wait, free, np.full(len(sites), float(waiting)))


def waits(in_flight: InFlightJobs, now: float, what: PublishedStatus, **job: Any) -> list[float]:
    asked = {"processors": 1, "runtime": 60.0, **job}
    found: list[float] = in_flight.waits(now, what, **asked)[0].tolist()
    return found


def one_site(processors: int = 4, **facts: Any) -> InFlightJobs:
    return InFlightJobs([site("a", processors, **facts)])


def send(in_flight: InFlightJobs, number: int, now: float, **job: Any) -> None:
    """It is at the site at once."""
    in_flight.send(number, 0, **{"processors": 1, "runtime": 60.0, "now": now, "due": now, **job})
    in_flight.arrive(number, now)


def test_the_published_wait_grows_shorter_as_it_grows_older() -> None:
    """Published as 100 s at 10 s: 70 s are left at 40 s, none at 200 s."""
    in_flight = one_site()

    assert waits(in_flight, 40.0, said((10.0, 100.0, 0))) == [70.0]
    assert waits(in_flight, 200.0, said((10.0, 100.0, 0))) == [0.0]


def test_what_was_sent_since_is_put_behind_what_the_site_knows() -> None:
    """Two jobs of 60 s on 4 processors: 30 s more."""
    in_flight = one_site()
    send(in_flight, 1, 15.0)
    send(in_flight, 2, 16.0)

    assert waits(in_flight, 20.0, said((10.0, 100.0, 0))) == [90.0 + 30.0]


def test_a_faster_site_does_the_same_work_in_less_time() -> None:
    """Speed 2: a job of runtime 60 s is 30 s there, over 4 processors."""
    in_flight = one_site(speed=2.0)
    send(in_flight, 1, 15.0)

    assert waits(in_flight, 20.0, said((10.0, 100.0, 0))) == [90.0 + 30.0 / 4]


def test_what_had_arrived_before_the_reading_is_counted_by_it() -> None:
    """Not twice; but what arrives at its very moment may have come after it was made."""
    in_flight = one_site()
    send(in_flight, 1, 9.0)
    assert waits(in_flight, 20.0, said((10.0, 100.0, 0))) == [90.0]
    send(in_flight, 2, 10.0)
    assert waits(in_flight, 20.0, said((10.0, 100.0, 0))) == [90.0 + 15.0]


def test_free_processors_are_taken_first() -> None:
    """3 of 4 free: a job waits for nothing while fewer than 3 of ours are there."""
    in_flight = one_site()
    for number in (1, 2):
        send(in_flight, number, 15.0)
        assert waits(in_flight, 20.0, said((10.0, 0.0, 3))) == [0.0]
    send(in_flight, 3, 15.0)
    assert waits(in_flight, 20.0, said((10.0, 0.0, 3)))[0] > 0


def test_on_an_empty_site_the_first_end_is_the_first_to_wait_for() -> None:
    """4 jobs of 60 s since 15 s on 4 processors: at 20 s the first ends in 55 s, and others as
    often as a job of the mean length, (4 x 55 + 60) / 5 = 56 s, ends on 4 processors."""
    in_flight = one_site()
    for number in range(4):
        send(in_flight, number, 15.0)
        in_flight.begin(number, 15.0)

    assert waits(in_flight, 20.0, said((10.0, 0.0, 4))) == [55.0 + 56.0 / 4]


def test_others_jobs_end_at_even_intervals_meanwhile() -> None:
    """1 of 4 free, and ours takes it: the other 3 jobs of 60 s end every 20 s."""
    in_flight = one_site()
    send(in_flight, 1, 20.0)

    assert waits(in_flight, 20.0, said((10.0, 0.0, 1))) == [60.0 / 3]


def test_a_job_of_several_processors_waits_for_all_of_them() -> None:
    """The published wait is for one; 3 x 60 s over 4 processors are needed for 3 more."""
    assert waits(one_site(), 10.0, said((10.0, 100.0, 0)), processors=4) == [100.0 + 45.0]


def test_work_that_is_done_counts_no_more() -> None:
    """Of a job of 60 s that began 20 s ago 40 s are left; once it has ended, nothing."""
    in_flight = one_site()
    send(in_flight, 1, 100.0)
    in_flight.begin(1, 100.0)
    assert waits(in_flight, 120.0, said((90.0, 100.0, 0))) == [70.0 + 40.0 / 4]
    in_flight.end(1, 120.0)
    assert waits(in_flight, 120.0, said((90.0, 100.0, 0))) == [70.0]
    assert len(in_flight) == 0


def test_jobs_whose_files_come_later_are_not_in_the_way() -> None:
    """One is due at 200 s: a job whose files are there by 100 s is before it."""
    in_flight = one_site()
    in_flight.send(1, 0, processors=1, runtime=60.0, now=20.0, due=200.0)
    state = said((10.0, 100.0, 0))

    assert waits(in_flight, 20.0, state, arrival=np.array([100.0])) == [90.0]
    assert waits(in_flight, 20.0, state, arrival=np.array([300.0])) == [90.0 + 15.0]


def test_a_job_that_is_late_may_come_at_any_moment() -> None:
    """Due at 15 s, and not there at 20 s: it is before what is sent now."""
    in_flight = one_site()
    in_flight.send(1, 0, processors=1, runtime=60.0, now=15.0, due=15.0)

    assert waits(in_flight, 20.0, said((10.0, 100.0, 0))) == [90.0 + 15.0]


def test_jobs_of_unknown_length_are_as_long_as_those_that_ended() -> None:
    """Seconds at speed 1: 10 s at a site of speed 2 are 20 s of a job."""
    in_flight = one_site(speed=2.0)
    assert in_flight.usual == ASSUMED_RUNTIME
    for number, seconds in ((1, 10.0), (2, 20.0)):
        send(in_flight, number, 0.0, runtime=None)
        in_flight.begin(number, 0.0)
        in_flight.end(number, seconds)

    assert in_flight.usual == 30.0
    send(in_flight, 3, 50.0, runtime=None)
    assert waits(in_flight, 50.0, said((40.0, 100.0, 0))) == [90.0 + 15.0 / 4]


def test_a_job_that_never_began_teaches_nothing() -> None:
    in_flight = one_site()
    send(in_flight, 1, 0.0)
    in_flight.end(1, 500.0)

    assert in_flight.usual == ASSUMED_RUNTIME


def test_a_site_that_publishes_no_wait_has_a_queue_of_usual_jobs() -> None:
    """3 wait on 4 processors, and a fourth of the usual length would be through after 4 / 4."""
    in_flight = one_site()

    assert waits(in_flight, 10.0, said((10.0, NAN, 0), waiting=3)) == [ASSUMED_RUNTIME]


def test_telling_twice_or_of_strangers_changes_nothing() -> None:
    in_flight = one_site()
    for tell in (in_flight.arrive, in_flight.begin, in_flight.end):
        tell(77, 5.0)
    in_flight.drop(77)
    send(in_flight, 1, 15.0)
    in_flight.arrive(1, 18.0)
    in_flight.end(1, 19.0)
    in_flight.end(1, 19.0)

    assert waits(in_flight, 20.0, said((10.0, 100.0, 0))) == [90.0]


def test_a_job_sent_again_is_at_one_site_only() -> None:
    """It failed there and goes elsewhere, and nobody said that it ended."""
    in_flight = InFlightJobs([site("a"), site("b")])
    in_flight.send(1, 0, processors=1, runtime=60.0, now=15.0, due=15.0)
    in_flight.send(1, 1, processors=1, runtime=60.0, now=16.0, due=16.0)

    found = waits(in_flight, 20.0, said((10.0, 100.0, 0), (10.0, 100.0, 0)))

    assert found == [90.0, 105.0]


def test_only_what_a_reading_may_not_count_is_kept_at_hand() -> None:
    """So that a question costs the same however many jobs run and wait."""
    in_flight = one_site()
    for number in range(500):
        send(in_flight, number, float(number))
    in_flight.forget_counted(np.array([499.0]))

    assert len(in_flight) == 500
    assert len(in_flight._numbers) == 1
    for number in range(500):
        in_flight.end(number, 600.0)
    assert len(in_flight._numbers) == 0


# A plain twin: every job as it was told of, and each question answered from all of them.


@dataclass
class Sent:
    site: int
    processors: int
    runtime: float | None
    due: float
    arrived: float = math.inf
    began: float = math.inf


class Twin:
    """The formulas of the documentation, job by job and site by site."""

    def __init__(self, sites: list[Any]) -> None:
        self.sites = sites
        self.jobs: dict[int, Sent] = {}
        self.ran: list[float] = []

    def wait(self, i: int, now: float, what: PublishedStatus, processors: int,
             runtime: float | None, arrival: float) -> float:  # fmt: skip
        usual = sum(self.ran) / len(self.ran) if self.ran else ASSUMED_RUNTIME
        width, speed = self.sites[i].processors, self.sites[i].speed
        length = (usual if runtime is None else runtime) / speed
        at, published, free = what.at[i], what.wait[i], what.free[i]
        ours = [
            sent
            for sent in self.jobs.values()
            if sent.site == i and sent.arrived >= at and min(sent.due, sent.arrived) <= arrival
        ]
        work, ends = 0.0, [math.inf]
        for sent in ours:
            total = (usual if sent.runtime is None else sent.runtime) / speed
            start = sent.began
            if start == math.inf:
                start = now if sent.arrived <= now else max(now, sent.due)
            left = max(0.0, total - max(0.0, now - start))
            work += sent.processors * left
            ends.append(max(start, now) + left - now)
        taken = sum(sent.processors for sent in ours)
        if not free > 0 or published > 0:
            if math.isnan(published):
                published = (what.waiting[i] + 1) * usual / speed / width
            left = max(0.0, published - (now - at))
            return left + (work + (processors - 1) * length) / width
        k = taken + processors - free
        if k <= 0:
            return 0.0
        ahead = k * (work + processors * length) / (taken + processors)
        others, first = max(0.0, width - free), min(ends)
        if ahead <= first * others:
            return ahead / others if others else 0.0
        return first + (ahead - first * others) / width


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["send", "arrive", "begin", "end", "drop", "publish", "ask"]),
        st.integers(0, 2),
        st.integers(0, 9),
        st.floats(0, 50),
    ),
    max_size=60,
)


@given(EVENTS, st.randoms(use_true_random=False))
@settings(max_examples=examples(150))
def test_it_gives_what_the_plain_twin_gives(events: list[Any], random: Any) -> None:
    """Whatever is told, in whatever order; what was forgotten because every reading counts it
    makes no difference."""
    sites = [site("a", 1), site("b", 3, speed=2.0), site("c", 8, speed=0.5)]
    in_flight, twin = InFlightJobs(sites), Twin(sites)
    now = 0.0
    what = said((0.0, 0.0, 1), (0.0, 5.0, 0), (0.0, NAN, 3), waiting=2)
    for event, place, number, step in events:
        now += step
        sent = twin.jobs.get(number)
        if event == "send":
            runtime = None if number % 3 == 0 else 7.0 * number
            one = Sent(place, min(1 + number % 2, sites[place].processors), runtime, now + step)
            twin.jobs[number] = one
            in_flight.send(
                number, place, processors=one.processors, runtime=runtime, now=now, due=one.due
            )
        elif event == "arrive":
            in_flight.arrive(number, now)
            if sent:
                sent.arrived = min(sent.arrived, now)
        elif event == "begin":
            in_flight.begin(number, now)
            if sent:
                sent.arrived, sent.began = min(sent.arrived, now), now
        elif event == "end":
            in_flight.end(number, now)
            if sent and sent.began < math.inf:
                twin.ran.append((now - sent.began) * sites[sent.site].speed)
            twin.jobs.pop(number, None)
        elif event == "drop":
            in_flight.drop(number)
            twin.jobs.pop(number, None)
        elif event == "publish":
            what.at[place], what.wait[place] = now, random.choice([0.0, 3.0, 40.0, NAN])
            what.free[place] = random.choice([0, 1, sites[place].processors])
            in_flight.forget_counted(what.at)
        arrival = np.array([now, now + step, now + 2 * step])
        runtime = random.choice([None, 20.0])
        found = waits(in_flight, now, what, processors=1, runtime=runtime, arrival=arrival)
        expected = [twin.wait(i, now, what, 1, runtime, arrival[i]) for i in range(3)]
        assert found == pytest.approx(expected)
