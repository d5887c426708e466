"""What processors were good for, and whether the scheduler says so too."""

from hypothesis import given
from hypothesis import strategies as st

from bursar.market.lease import Lease
from bursar.provisioning.accounting import (
    AllocationUsage,
    ProcessorSpan,
    account_of,
    reconcile,
    summed,
)
from bursar.provisioning.lrm.resource_manager import JobEnding, JobUsage


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


def usage(
    job: str, processors: int, seconds: float, how: JobEnding | None = "completed"
) -> JobUsage:
    """Of one job."""
    return JobUsage(id=job, processors=processors, seconds=seconds, how=how)


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


def account(name: str, processors: int, acquired: float) -> AllocationUsage:
    """All of it used."""
    return AllocationUsage(
        name=name, site="a", processors=processors, acquired=acquired, starting=0.0, used=acquired
    )


def test_what_agrees_with_the_scheduler_is_not_listed() -> None:
    """Within one second of the job, in which schedulers count, and half a hundredth."""
    accounts = [account("lease-1", 4, 400.0), account("lease-2", 1, 10_000.0)]
    jobs = {"lease-1": "7", "lease-2": "8"}
    said = {"7": usage("7", 4, 101.0), "8": usage("8", 1, 10_050.0)}
    assert reconcile(accounts, jobs, said) == []


def test_seven_hundredths_are_a_difference() -> None:
    """846 CPU s against 912 on 16 processors is not a matter of rounding."""
    accounts = [account("lease-1", 16, 846.0)]
    (found,) = reconcile(accounts, {"lease-1": "7"}, {"7": usage("7", 16, 57.0)})
    assert (found.ours, found.theirs) == (846.0, 912.0)


def test_every_difference_is_listed() -> None:
    """Too long, without a record, and of nobody: an allocation that leaked."""
    accounts = [account("lease-1", 4, 400.0), account("lease-2", 1, 100.0)]
    jobs = {"lease-1": "7", "lease-2": "8"}
    said = {"7": usage("7", 4, 200.0), "9": usage("9", 2, 3600.0)}
    assert [str(d) for d in reconcile(accounts, jobs, said)] == [
        "lease-1: 400 CPU s by our record, 800 by the scheduler's (job 7)",
        "lease-2: the scheduler has no record, ours says 100 CPU s",
        "job 9: 7200 CPU s of the scheduler's are of no request",
    ]


def test_what_runs_or_never_began_is_no_difference() -> None:
    """It has no end yet; and a request that was withdrawn took nothing."""
    accounts = [account("lease-1", 4, 400.0), account("lease-2", 1, 0.0)]
    said = {"7": usage("7", 4, 300.0, None), "8": usage("8", 1, 0.0, "cancelled")}
    assert reconcile(accounts, {"lease-1": "7", "lease-2": "8"}, said) == []
