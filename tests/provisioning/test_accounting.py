"""What processors were good for, and whether the scheduler says so too."""

from hypothesis import given
from hypothesis import strategies as st

from bursar.market.lease import Lease
from bursar.provisioning.accounting import (
    ProcessorSpan,
    account_of,
    agree,
    summed,
)


def lease(processors: int = 2, end: float | None = 200.0, name: str = "lease-1") -> Lease:
    """From second 100 on."""
    return Lease(
        id=name,
        site="a",
        processors=processors,
        unit_price=1.0,
        fixed_price=0.0,
        start=100.0,
        end=end,
    )


def test_processor_time_is_told_apart_by_what_it_was_good_for() -> None:
    """Two of 100 s: 10 and 20 s until the workers are there, tasks of 50 and 30 s."""
    ready = [ProcessorSpan(start=110, end=200), ProcessorSpan(start=120, end=200)]
    tasks = [ProcessorSpan(start=115, end=165), ProcessorSpan(start=130, end=160)]
    made = account_of(lease(), ready, tasks, now=999.0)
    assert (made.acquired, made.starting, made.used, made.idle) == (200, 30, 80, 90)


def test_a_lease_that_is_open_counts_until_now() -> None:
    """And a task only as long as it has run."""
    tasks = [ProcessorSpan(start=100, end=900, processors=2)]
    made = account_of(lease(end=None), tasks, tasks, now=150.0)
    assert (made.acquired, made.starting, made.used, made.idle) == (100, 0, 100, 0)


spans = st.lists(
    st.builds(
        ProcessorSpan, start=st.floats(0, 300), end=st.floats(0, 300), processors=st.integers(1, 3)
    ),
    max_size=6,
)


@given(spans, spans, st.integers(1, 5))
def test_its_parts_sum_to_what_was_acquired(
    ready: list[ProcessorSpan], tasks: list[ProcessorSpan], processors: int
) -> None:
    """Whatever was journalled."""
    made = account_of(lease(processors), ready, tasks, now=0.0)
    assert min(made.starting, made.used, made.idle) >= 0
    assert abs(made.starting + made.used + made.idle - made.acquired) < 1e-6


def test_sites_are_summed() -> None:
    """Request by request."""
    one = account_of(lease(), [], [], now=0.0)
    assert summed([one, one])["a"].acquired == 400


def test_what_agrees_with_the_scheduler() -> None:
    """Within one second of the job, in which schedulers count, and half a hundredth."""
    assert agree(400.0, 404.0, 4)
    assert agree(10_000.0, 10_050.0, 1)
    assert not agree(400.0, 408.0, 4)
    assert not agree(10_000.0, 10_060.0, 1)


def test_seven_hundredths_are_a_difference() -> None:
    """846 CPU s against 912 on 16 processors is not a matter of rounding."""
    assert not agree(846.0, 912.0, 16)
