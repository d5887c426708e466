"""Countable resources of a site: never more given than there are, and no device twice."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.dispatch.conftest import room as room
from tests.worker.test_worker import task

from bursar.engine.shared_resources import (
    UNKNOWN_DEVICES,
    ResourceNeeds,
    SharedResources,
    resources_by_site,
)
from bursar.model.task import GPU, Shell, Status

TOTALS = {GPU: 3, "licence": 2}


@dataclass
class Claim:
    """A task that holds some."""

    resources: ResourceNeeds
    devices: tuple[int, ...] = field(default=())


needs = st.dictionaries(st.sampled_from([GPU, "licence"]), st.integers(1, 3), min_size=1).map(
    lambda wanted: tuple(sorted(wanted.items()))
)


@given(st.lists(st.tuples(needs, st.booleans(), st.booleans()), max_size=30))
def test_what_is_held_never_exceeds_what_there_is(
    events: list[tuple[ResourceNeeds, bool, bool]],
) -> None:
    shared, held = SharedResources(TOTALS), list[Claim]()
    for wanted, ends, adopted in events:
        if ends and held:
            shared.let_go(held.pop(0))
        if shared.has(wanted):
            claim = Claim(wanted, UNKNOWN_DEVICES if adopted else ())
            shared.hold(claim)
            held.append(claim)
        for name, total in TOTALS.items():
            assert sum(dict(c.resources).get(name, 0) for c in held) <= total
        known = [c for c in held if c.devices != UNKNOWN_DEVICES]
        devices = [device for claim in known for device in claim.devices]
        assert len(devices) == len(set(devices))
        assert all(len(c.devices) == dict(c.resources).get(GPU, 0) for c in known)
    for claim in held:
        shared.let_go(claim)
    assert shared.has(tuple(TOTALS.items()))


@given(
    st.lists(
        st.tuples(
            st.sampled_from("ab"),
            st.dictionaries(st.sampled_from(["licence", "link"]), st.integers(1, 3), min_size=1),
            st.booleans(),
        ),
        max_size=30,
    )
)
def test_what_belongs_to_no_site_is_counted_over_all(
    events: list[tuple[str, dict[str, int], bool]],
) -> None:
    """Four links in all, three of which may be used at a; two licences at each site."""
    totals = {"a": {"licence": 2, "link": 3}, "b": {"licence": 2, "link": 4}}
    sites, held = resources_by_site(totals, {"link": 4}), list[tuple[str, Claim]]()
    for site, wanted, ends in events:
        if ends and held:
            name, claim = held.pop(0)
            sites[name].let_go(claim)
        needs = tuple(sorted(wanted.items()))
        used = {n: sum(dict(c.resources).get("link", 0) for s, c in held if s == n) for n in "ab"}
        links = wanted.get("link", 0)
        licences = sum(dict(c.resources).get("licence", 0) for s, c in held if s == site)
        fits = (
            sum(used.values()) + links <= 4
            and used[site] + links <= totals[site]["link"]
            and licences + wanted.get("licence", 0) <= 2
        )
        assert sites[site].has(needs) == fits
        if fits:
            held.append((site, Claim(needs)))
            sites[site].hold(held[-1][1])


def test_nobody_gets_a_device_that_a_task_from_before_a_restart_may_have() -> None:
    shared = SharedResources({GPU: 2})
    before = Claim(((GPU, 1),), UNKNOWN_DEVICES)
    shared.hold(before)

    assert not shared.has(((GPU, 1),))
    shared.let_go(before)
    assert shared.has(((GPU, 2),))


def test_a_site_without_a_resource_could_never_have_it() -> None:
    assert not SharedResources({}).could_have(((GPU, 1),))


LOG = (
    "echo + >> {0}; n=$(grep -c + {0}); m=$(grep -c - {0}); echo $((n - m)); sleep 0.05;"
    " echo - >> {0}"
)


@pytest.mark.parametrize("processors", [1, 4])
def test_tasks_that_run_together_hold_no_more_than_the_site_has(room: Any, processors: int) -> None:
    """Over all workers of the site; what needs none overtakes what waits."""
    log = room.path / "log"
    log.touch()
    sites = {"local": {"licence": 2}}
    tasks = [
        *(task(Shell(LOG.format(log)), id=f"l{i}", resources={"licence": 1}) for i in range(8)),
        *(task(Shell("true"), id=f"f{i}") for i in range(4)),
    ]
    outcomes = room.carry_out(tasks, processors=processors, resources=resources_by_site(sites, {}))

    assert {outcome.status for outcome in outcomes} == {Status.SUCCEEDED}
    together = [int(outcome.stdout) for outcome in outcomes[:8]]
    assert max(together) <= 2


def test_small_needs_never_keep_a_large_one_waiting(room: Any) -> None:
    """The task for both licences starts before those for one that come behind it."""
    sites = {"local": {"licence": 2}}
    small = [task(Shell("sleep 0.05"), id=f"s{i}", resources={"licence": 1}) for i in range(9)]
    large = task(Shell("true"), id="large", resources={"licence": 2})
    outcomes = room.carry_out(
        [small[0], large, *small[1:]], processors=4, resources=resources_by_site(sites, {})
    )

    assert outcomes[1].start <= min(outcome.start for outcome in outcomes[2:])


def test_gpus_that_tasks_see_are_distinct(room: Any) -> None:
    line = "echo $CUDA_VISIBLE_DEVICES $ROCR_VISIBLE_DEVICES; sleep 0.1"
    sites = {"local": {GPU: 3}}
    tasks = [task(Shell(line), id=f"g{i}", resources={GPU: 1 + i % 2}) for i in range(6)]
    outcomes = room.carry_out(tasks, processors=4, resources=resources_by_site(sites, {}))

    outcomes.sort(key=lambda outcome: outcome.task)
    seen = [outcome.stdout.decode().split() for outcome in outcomes]
    assert all(cuda == rocr for cuda, rocr in seen)
    assert [len(cuda.split(",")) for cuda, _ in seen] == [1, 2] * 3
    for i, one in enumerate(outcomes):
        for other in outcomes[:i]:
            if one.start < other.end and other.start < one.end:
                mine, theirs = (set(seen[o.task][0].split(",")) for o in (one, other))
                assert not mine & theirs


def test_devices_that_the_worker_was_given_are_divided_by_their_own_names(
    room: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch system says which of a machine's GPUs a job has; tasks get none of the others."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-7a,GPU-9c")
    monkeypatch.delenv("ROCR_VISIBLE_DEVICES", raising=False)
    line = "echo $CUDA_VISIBLE_DEVICES $ROCR_VISIBLE_DEVICES"
    wanted = task(Shell(line), resources={GPU: 2})
    (outcome,) = room.carry_out(
        [wanted], processors=1, resources=resources_by_site({"local": {GPU: 2}}, {})
    )

    assert outcome.stdout == b"GPU-7a,GPU-9c 0,1\n"
