"""Random problems for the tests: workflows, and sites with slots of every kind."""

from dataclasses import replace

from hypothesis import strategies as st

from bursar.model.campaign import Workflow
from bursar.model.network import Link
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.model.task import File, Task


@st.composite
def workflows(draw: st.DrawFn, most: int = 8, least_runtime: int = 0) -> Workflow:
    """A few tasks that hand files on; some wide, some without duration."""
    tasks = []
    for i in range(draw(st.integers(1, most))):
        read = draw(st.sets(st.integers(0, i - 1), max_size=3)) if i else set()
        tasks.append(
            Task(
                id=f"t{i}",
                runtime=draw(st.integers(least_runtime, 9)),
                processors=draw(st.integers(1, 4)),
                inputs=tuple(File(f"f{p}") for p in sorted(read)),
                outputs=(File(f"f{i}", draw(st.integers(0, 4))),),
            )
        )
    return Workflow(tuple(tasks))


@st.composite
def slots(draw: st.DrawFn, site: str) -> Slot:
    """Any kind of slot."""
    kind = draw(st.sampled_from(["whole", "whole", "whole, extensible", "part", "open", "lease"]))
    return Slot(
        site=site,
        start=draw(st.integers(0, 20)),
        duration=draw(st.integers(4, 30)),
        processors=draw(st.integers(1, 4)),
        unit_price=draw(st.sampled_from([0.0, 1.0, 3.0])),
        fixed_price=draw(st.sampled_from([0.0, 5.0])),
        divisible=kind in ("part", "open", "lease"),
        extensible=kind in ("whole, extensible", "open"),
        leased=kind == "lease",
    )


@st.composite
def site_lists(draw: st.DrawFn, most: int = 2, slots_each: int = 4) -> list[SiteFacts]:
    """Sites with slots, large enough that these never overlap on a processor; linked."""
    sites = []
    for i in range(draw(st.integers(1, most))):
        name = f"s{i}"
        offered = draw(st.lists(slots(name), min_size=1, max_size=slots_each))
        sites.append(
            SiteFacts(
                name=name,
                kind="advertised",
                processors=sum(slot.processors for slot in offered),
                speed=draw(st.sampled_from([0.5, 1.0, 2.0])),
                slots=tuple(offered),
            )
        )
    if draw(st.booleans()):
        names = [site.name for site in sites]
        sites = [
            replace(
                site,
                links={
                    name: Link(latency=1.0, bandwidth=2.0) for name in names if name != site.name
                },
            )
            for site in sites
        ]
    return sites
