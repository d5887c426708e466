"""Flux, held to recorded outputs: it is in no package that could be had here."""

import asyncio
import json
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.provisioning.lrm.recorded import Recorded, text_of

from bursar.model.errors import InputError, SiteError
from bursar.model.provisioning import BatchScheduler
from bursar.provisioning.lrm import flux as flux_output
from bursar.provisioning.lrm.command_adapter import expand_hostlist
from bursar.provisioning.lrm.command_runner import CommandResult
from bursar.provisioning.lrm.flux import Flux
from bursar.provisioning.lrm.resource_manager import JobReport, JobRequest

JOBS = text_of("flux/jobs.json")
FIRST = 15032385536
ANSWERS = {
    "id -un": CommandResult(0, "ada\n", ""),
    "flux jobs": CommandResult(0, JOBS, ""),
    "flux resource R -s all": CommandResult(0, text_of("flux/R-all.json"), ""),
    "flux resource R -s allocated": CommandResult(0, text_of("flux/R-allocated.json"), ""),
    "flux resource R -s down": CommandResult(0, text_of("flux/R-down.json"), ""),
    "flux batch": CommandResult(0, "ƒPuMuVy\n", ""),
    "flux cancel": CommandResult(0, "", ""),
}
REQUEST = JobRequest(name="w", processors=4, seconds=90, script="run me", folder="/home/ada/x")


def manager(answers: dict[str, CommandResult] = ANSWERS, **site: object) -> tuple[Flux, Recorded]:
    shell = Recorded(answers)
    return Flux(BatchScheduler(manager="flux", **site), shell), shell  # type: ignore[arg-type]


def look(*ids: int, answers: dict[str, CommandResult] = ANSWERS) -> dict[int, JobReport]:
    found = asyncio.run(manager(answers)[0].poll([str(id) for id in ids]))
    return {int(id): report for id, report in found.items()}


def _with(text: str) -> dict[str, CommandResult]:
    return {**ANSWERS, "flux jobs": CommandResult(0, text, "")}


def test_every_state_and_end_is_told() -> None:
    """Each by its state, its result and its exception."""
    reports = look(*range(FIRST, FIRST + 11))
    assert [(r.state, r.how) for r in reports.values()] == [
        ("running", None),
        ("pending", None),
        ("pending", None),
        ("held", None),
        ("ended", "completed"),
        ("ended", "failed"),
        ("ended", "timeout"),
        ("ended", "cancelled"),
        ("ended", "rejected"),
        ("ended", "node-fail"),
        ("unknown", None),
    ]
    running = reports[FIRST]
    assert running.began == pytest.approx(1687838671.92)
    assert running.until == pytest.approx(1687838671.92 + 3600)
    assert running.processors == 6
    assert running.nodes == ("burst08", "burst09", "burst10")
    assert reports[FIRST + 1].expected == 1687842272
    assert reports[FIRST + 1].reason == "insufficient resources"
    assert "begin-time" in reports[FIRST + 2].reason
    assert "unsatisfiable" in reports[FIRST + 8].reason
    assert reports[FIRST + 8].began is None


def test_one_command_tells_of_all() -> None:
    """Those that ended too."""
    flux, shell = manager()
    asyncio.run(flux.poll([str(id) for id in range(FIRST, FIRST + 500)]))
    assert shell.commands == 1


def test_asked_for_one_job_it_prints_no_list() -> None:
    """Then the job stands alone."""
    alone = json.dumps(json.loads(JOBS)["jobs"][0])
    assert look(FIRST, answers=_with(alone))[FIRST].state == "running"


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="{}"), max_size=80))
def test_an_odd_job_spoils_its_own_answer_only(odd: str) -> None:
    """Whatever its reason holds, quoted or not, the others are told as before."""
    spoiled = JOBS.replace('"insufficient resources"', odd)
    reports = look(FIRST, FIRST + 1, FIRST + 2, FIRST + 4, answers=_with(spoiled))
    expected = look(FIRST, FIRST + 2, FIRST + 4)
    assert {id: reports[id] for id in expected} == expected
    assert reports[FIRST + 1].state in ("pending", "unknown")


def test_what_is_no_listing_is_worth_asking_again() -> None:
    """Silence and nonsense: nobody knows. A job that is not there is something else."""
    for answer in (
        CommandResult(0, "hello", ""),
        CommandResult(1, "", "flux-jobs: ERROR: Unable to connect to Flux: Connection refused"),
    ):
        with pytest.raises(SiteError) as error:
            look(FIRST, answers={**ANSWERS, "flux jobs": answer})
        assert error.value.transient
    absent = CommandResult(1, "", "flux-jobs: ERROR: JobID 7 unknown")
    assert look(7, answers={**ANSWERS, "flux jobs": absent})[7].state == "unknown"


def test_a_strange_state_is_unknown() -> None:
    """And told."""
    report = look(FIRST, answers=_with(JOBS.replace('"RUN"', '"DANCE"')))[FIRST]
    assert report.state == "unknown"
    assert "DANCE" in report.reason


def test_job_numbers_are_read_in_base_58() -> None:
    """Flux RFC 19: the digits of 1 are 2, those of 58 are 21; ASCII terminals get an f."""
    assert flux_output.job_number("ƒ1") == "0"
    assert flux_output.job_number("ƒ2\n") == "1"
    assert flux_output.job_number("f21") == "58"
    # Both forms of one job, as flux-core 0.51 printed them.
    assert flux_output.job_number("ƒPuMuVy") == "15032385536"
    assert flux_output.job_number("15032385536") == "15032385536"
    assert flux_output.job_number("ƒ0") is None
    assert flux_output.job_number("hello") is None


def test_the_queue() -> None:
    """Cores of nodes from three sets of resources; jobs of all, running ones first."""
    state = asyncio.run(manager()[0].queue())
    assert [(node.name, node.processors, node.allocated, node.up) for node in state.nodes] == [
        ("burst08", 16, 16, True),
        ("burst09", 16, 16, True),
        ("burst10", 16, 6, True),
        ("burst11", 16, 0, False),
    ]
    assert state.free == 10
    assert [job.running for job in state.jobs] == [True, False, False, False]
    assert [job.held for job in state.jobs] == [False, False, False, True]
    assert all(job.own for job in state.jobs)


def test_hosts_are_told_one_by_one() -> None:
    """Flux RFC 29."""
    assert expand_hostlist("n[1-3,7],m,x[08-10]y") == (
        *("n1", "n2", "n3", "n7", "m"),
        *("x08y", "x09y", "x10y"),
    )
    assert expand_hostlist("") == ()


def test_the_script_says_what_is_asked_for() -> None:
    """A begin is so many seconds from now; jobs that are alike are handed in one by one."""
    flux, shell = manager(queue="batch", account="physics", directives=("--exclusive",))
    request = replace(REQUEST, together=True, copies=2, begin=time.time() + 1000)
    ids = asyncio.run(flux.submit(request))
    assert len(ids) == 2
    scripts = [stdin.splitlines() for command, stdin in shell.asked if command[1] == "batch"]
    for line in (
        "# flux: --time-limit=90s",
        "# flux: --nslots=1",
        "# flux: --cores-per-slot=4",
        "# flux: --queue=batch",
        "# flux: --bank=physics",
        "# flux: --exclusive",
        "run me",
    ):
        assert line in scripts[1]
    assert "# flux: --begin-time=+1000s" in scripts[0]
    assert [script[-2] for script in scripts] == [
        "BURSAR_ELEMENT=0; export BURSAR_ELEMENT",
        "BURSAR_ELEMENT=1; export BURSAR_ELEMENT",
    ]


def test_when_one_of_several_is_not_taken_none_is() -> None:
    """Those before are withdrawn."""

    class Tired(Recorded):
        async def run(self, command, **more):  # type: ignore[no-untyped-def, override]
            if command[:2] == ["flux", "batch"] and self.commands == 2:
                self.commands += 1
                return CommandResult(1, "", "flux-batch: ERROR: max jobs limit")
            return await super().run(command, **more)

    shell = Tired(ANSWERS)
    flux = Flux(BatchScheduler(manager="flux"), shell)
    with pytest.raises(SiteError, match="max_pending"):
        asyncio.run(flux.submit(replace(REQUEST, copies=3)))
    cancelled = [command for command, _ in shell.asked if command[1] == "cancel"]
    assert [len(command) - 2 for command in cancelled] == [2]


@pytest.mark.parametrize(
    ("words", "hint", "transient"),
    [
        ("flux-batch: ERROR: [Errno 22] Invalid queue specified", '"queue"', False),
        ("flux-batch: ERROR: requested duration exceeds policy limit of 1h", "less time", False),
        ("flux-batch: ERROR: unsatisfiable request", "fewer processors", False),
        ("flux-batch: ERROR: Unable to connect to Flux: broker gone", "", True),
        ("Something new", "Something new", False),
    ],
)
def test_a_refusal_says_why_and_what_to_change(words: str, hint: str, transient: bool) -> None:
    """In Flux's own words."""
    answers = {
        **ANSWERS,
        "flux batch": CommandResult(1, "", words),
        "flux jobs -a --name": CommandResult(0, '{"jobs": []}', ""),
    }
    with pytest.raises(SiteError) as error:
        asyncio.run(manager(answers)[0].submit(REQUEST))
    assert words in str(error.value)
    assert hint in str(error.value)
    assert error.value.transient is transient


def test_usage_is_what_flux_counted() -> None:
    """Cores by run time; one that was withdrawn before took nothing."""
    ids = [str(FIRST + 4), str(FIRST + 7)]
    used = asyncio.run(manager()[0].usage(ids))
    assert list(used) == ids[:1]
    assert used[ids[0]].processors * used[ids[0]].seconds == pytest.approx(6 * 10.08, abs=1)


def test_a_quality_of_service_is_refused_before_anything_is_tried() -> None:
    """Flux has none."""
    with pytest.raises(InputError, match="qos"):
        Flux(BatchScheduler(manager="flux", qos="high"))
