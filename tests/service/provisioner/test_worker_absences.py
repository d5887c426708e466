"""A penalty is owed for what the owner failed to deliver, never for workers that tasks ended."""

from hypothesis import given
from hypothesis import strategies as st

from bursar.service.provisioner.worker_absences import WorkerAbsences
from bursar.service.workers.worker_server import OUTLIVES

POOL = "deal"


class Leases:
    """Two leases of one agreement, as the provisioner observes them, at a second each."""

    def __init__(self) -> None:
        self.absences = WorkerAbsences()
        self.now = 1_000.0
        self.replaced = {"a": 0, "b": 0}

    def see(self, lease: str, ready: int, *, died: int = 0) -> None:
        self.now += 1.0
        self.replaced[lease] += died
        self.absences.observe(
            lease,
            POOL,
            processors=4,
            ready=ready,
            replaced=self.replaced[lease],
            now=self.now,
        )


def test_a_worker_that_is_replaced_says_that_its_predecessor_ended() -> None:
    """Its absence is excused in hindsight, and only once."""
    leases = Leases()
    leases.see("a", 4)
    leases.see("a", 0)
    assert leases.absences.excused(POOL, 4) == (0, 0)
    leases.see("a", 4, died=4)
    assert leases.absences.excused(POOL, 0) == (4, 0)
    assert leases.absences.excused(POOL, 0) == (0, 0)


def test_a_broken_connection_is_the_owners() -> None:
    """The same worker comes back, and nobody said that one ended."""
    leases = Leases()
    for ready in (4, 0, 4):
        leases.see("a", ready)
        assert leases.absences.excused(POOL, 4 - ready) == (0, 0)


def test_workers_that_quit_are_excused_until_others_are_ready() -> None:
    """Also after their lease is over and while the next one is on its way."""
    leases = Leases()
    leases.see("a", 4)
    leases.see("a", 0)
    leases.absences.quit("a", leases.now)
    assert leases.absences.excused(POOL, 4) == (4, 4)
    leases.absences.over("a")
    assert leases.absences.excused(POOL, 4) == (0, 4)
    leases.see("b", 0)
    assert leases.absences.excused(POOL, 4) == (0, 4)
    leases.see("b", 4)
    assert leases.absences.excused(POOL, 0) == (0, 0)
    leases.see("b", 0)
    assert leases.absences.excused(POOL, 4) == (0, 0)


def test_a_site_that_gives_no_others_is_guilty() -> None:
    """What followed from the customer's task ends where the owner's site fails."""
    leases = Leases()
    leases.see("a", 4)
    leases.see("a", 0)
    leases.absences.quit("a", leases.now)
    leases.absences.over("a")
    leases.absences.failed("b", POOL)
    assert leases.absences.excused(POOL, 4)[1] == 0


def test_workers_that_never_worked_or_were_cut_off_are_the_owners() -> None:
    """A worker that cannot start, and a pilot that gave up looking for the service."""
    leases = Leases()
    leases.see("a", 0)
    leases.absences.quit("a", leases.now)
    assert leases.absences.excused(POOL, 4) == (0, 0)
    leases.see("b", 4)
    leases.see("b", 0)
    leases.now += OUTLIVES
    leases.absences.quit("b", leases.now)
    assert leases.absences.excused(POOL, 4) == (0, 0)


def test_a_lost_lease_is_not_excused_by_the_death_of_another() -> None:
    leases = Leases()
    leases.see("a", 4)
    leases.see("b", 4)
    leases.see("a", 0)
    leases.absences.failed("a", POOL)
    leases.see("b", 2)
    leases.absences.quit("b", leases.now)
    assert leases.absences.excused(POOL, 6) == (2, 2)


def test_agreements_that_are_over_are_forgotten() -> None:
    leases = Leases()
    leases.see("a", 4)
    leases.absences.quit("a", leases.now)
    leases.see("a", 0)
    leases.absences.quit("a", leases.now)
    leases.absences.over("a")
    leases.absences.keep(())
    assert leases.absences.excused(POOL, 4) == (0, 0)


@given(
    st.lists(
        st.tuples(
            st.sampled_from("ab"),
            st.sampled_from(["see", "quit", "over", "fail"]),
            st.integers(0, 4),
        ),
        max_size=30,
    )
)
def test_never_more_is_excused_than_is_missing(events: list[tuple[str, str, int]]) -> None:
    """Whatever happens in whatever order, and nothing is while all processors are ready."""
    leases = Leases()
    ready = {"a": 0, "b": 0}
    for lease, what, count in events:
        if what == "see":
            leases.see(lease, count, died=max(0, count - ready[lease]))
            ready[lease] = count
        elif what == "quit":
            leases.absences.quit(lease, leases.now)
        else:
            ready[lease] = 0
            if what == "over":
                leases.absences.over(lease)
            else:
                leases.absences.failed(lease, POOL)
        missing = 8 - sum(ready.values())
        before, excused = leases.absences.excused(POOL, missing)
        assert 0 <= excused <= missing
        assert before >= 0
