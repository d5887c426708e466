"""Situations for the tests of what is decided on them."""

import math
from collections.abc import Sequence

from hypothesis import strategies as st

from bursar.broker.adviser import SchedulingSnapshot, SiteSnapshot
from bursar.broker.estimates import RuntimeEstimates
from bursar.broker.packing import JobSizeClasses


def posted(price: float) -> tuple[tuple[float, float, float], ...]:
    """A price that never changes."""
    return ((0.0, math.inf, price),)


def off_peak(price: float, begin: float, cheap: float) -> tuple[tuple[float, float, float], ...]:
    """A price that falls after some seconds."""
    return ((0.0, begin, price), (begin, math.inf, cheap))


def situation(
    sites: Sequence[SiteSnapshot],
    sizes: Sequence[float],
    *,
    time_left: float = math.inf,
    money_left: float = math.inf,
    speeds: dict[str, float] | None = None,
    known: bool = True,
    jobs: int | None = None,
    probes: int = 0,
) -> SchedulingSnapshot:
    """Before anything has ended; sites are of speed 1 unless said."""
    every = dict.fromkeys((site.name for site in sites), 1.0)
    return SchedulingSnapshot(
        sites=sites,
        sizes=JobSizeClasses.of(sizes),
        jobs=len(sizes) if jobs is None else jobs,
        estimates=RuntimeEstimates({**every, **(speeds or {})}, known),
        time_left=time_left,
        money_left=money_left,
        budget=money_left,
        probes=probes,
    )


prices = st.one_of(
    st.sampled_from([0.0, 1.0, 2.0, 5.0]).map(posted),
    st.tuples(
        st.sampled_from([1.0, 5.0]), st.sampled_from([3.0, 10.0]), st.sampled_from([0.5, 2.0])
    ).map(lambda drawn: off_peak(*drawn)),
)

limits = st.sampled_from([1.0, 2.0, 4.0, 6.0, 9.0, 14.0, 20.0, 40.0, 70.0, math.inf])


@st.composite
def situations(draw: st.DrawFn, sizes: Sequence[float] = (2.0,)) -> SchedulingSnapshot:
    """Few sites, jobs of some sizes; most limits are too tight, some are not."""
    sites = [
        SiteSnapshot(
            name=f"s{i}",
            processors=draw(st.integers(1, 3)),
            prices=draw(prices),
            fixed=draw(st.sampled_from([0.0, 0.0, 3.0])),
        )
        for i in range(draw(st.integers(1, 3)))
    ]
    waiting = draw(st.lists(st.sampled_from(sizes), min_size=4, max_size=15))
    return situation(
        sites,
        waiting,
        time_left=draw(limits),
        money_left=draw(limits),
        speeds={site.name: draw(st.sampled_from([0.5, 1.0, 2.0])) for site in sites},
        jobs=len(waiting) + draw(st.integers(0, 5)),
    )
