"""LSF, held to recorded outputs: it cannot be run here."""

import asyncio
import calendar
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.provisioning.lrm.recorded import Recorded, text_of

from bursar.model.errors import InputError, SiteError
from bursar.model.provisioning import BatchScheduler
from bursar.provisioning.lrm import lsf as lsf_output
from bursar.provisioning.lrm.command_runner import CommandResult
from bursar.provisioning.lrm.lsf import LSF
from bursar.provisioning.lrm.resource_manager import JobReport, JobRequest

BJOBS = text_of("lsf/bjobs.json")
ANSWERS = {
    "id -un": CommandResult(0, "ada\n", ""),
    "bjobs": CommandResult(0, BJOBS, "Job <999> is not found\n"),
    "bhosts": CommandResult(0, text_of("lsf/bhosts.json"), ""),
    "bqueues": CommandResult(0, text_of("lsf/bqueues.txt"), ""),
    "bacct": CommandResult(0, text_of("lsf/bacct.txt"), ""),
    "bsub": CommandResult(0, "Job <806300> is submitted to queue <normal>.\n", ""),
    "bkill": CommandResult(0, "Job <1> is being terminated\n", ""),
    "date": CommandResult(0, "2026:09:30:22:33\n", ""),
}
REQUEST = JobRequest(name="w", processors=4, seconds=90, script="run me", folder="/home/ada/x")
STARTED = float(calendar.timegm((2026, 9, 30, 20, 32, 15)))


def manager(answers: dict[str, CommandResult] = ANSWERS, **site: object) -> tuple[LSF, Recorded]:
    shell = Recorded(answers)
    return LSF(BatchScheduler(manager="lsf", **site), shell), shell  # type: ignore[arg-type]


def look(*ids: str, answers: dict[str, CommandResult] = ANSWERS) -> dict[str, JobReport]:
    return dict(asyncio.run(manager(answers)[0].poll(ids)))


def _with(text: str) -> dict[str, CommandResult]:
    return {**ANSWERS, "bjobs": CommandResult(0, text, "")}


def test_every_state_and_end_is_told() -> None:
    """Each by its state, its termination reason and its exit code."""
    reports = look(*(f"80629{n}" for n in (0, 1, 2, 4, 5, 6, 7)), "806293[1]", "806293[2]")
    assert {id: (report.state, report.how) for id, report in reports.items()} == {
        "806290": ("running", None),
        "806291": ("pending", None),
        "806292": ("held", None),
        "806293[1]": ("ended", "completed"),
        "806293[2]": ("ended", "cancelled"),
        "806294": ("ended", "timeout"),
        "806295": ("ended", "failed"),
        "806296": ("unknown", None),
        "806297": ("running", None),
    }
    running = reports["806290"]
    assert running.began == STARTED
    assert running.until == STARTED + 1440 * 60
    assert running.processors == 43
    assert running.nodes == ("n1", "n2")
    assert reports["806291"].expected == STARTED + 27 * 60 + 45
    assert reports["806291"].reason.startswith("New job is waiting")
    assert "out of reach" in reports["806296"].reason
    assert reports["806297"].reason == "suspended"


def test_jobs_that_bjobs_forgot_are_looked_up() -> None:
    """In the accounting, by one command more; what is not there either is unknown."""
    lsf, shell = manager()
    reports = asyncio.run(lsf.poll(["806290", "700001", "700002[7]", "999"]))
    assert shell.commands == 2
    assert reports["700001"].how == "completed"
    assert reports["700002[7]"].how == "timeout"
    assert reports["700002[7]"].reason.endswith("LSF run time limit")
    assert reports["999"].state == "unknown"


def test_one_command_tells_of_all() -> None:
    """As long as all are listed."""
    lsf, shell = manager()
    asyncio.run(lsf.poll(["806290", "806291", "806293[1]", "806293[2]"]))
    assert shell.commands == 1


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="{}"), max_size=80))
def test_an_odd_job_spoils_its_own_answer_only(odd: str) -> None:
    """Whatever its reason holds, quoted or not, the others are told as before."""
    spoiled = BJOBS.replace('"New job is waiting for scheduling;"', odd)
    reports = look("806290", "806291", "806292", answers=_with(spoiled))
    expected = look("806290", "806292")
    assert {id: reports[id] for id in expected} == expected
    assert reports["806291"].state in ("pending", "unknown")


def test_warnings_before_the_listing_are_no_part_of_it() -> None:
    """As LSF prints them when its master is slow."""
    text = "Cannot connect to LSF. Please wait ...\n" * 2 + BJOBS
    assert look("806290", answers=_with(text))["806290"].state == "running"


def test_what_is_no_listing_is_worth_asking_again() -> None:
    """Silence and nonsense: nobody knows."""
    for answer in (
        CommandResult(0, "hello", ""),
        CommandResult(255, "", "LSF is down. Please wait ..."),
    ):
        with pytest.raises(SiteError) as error:
            look("806290", answers={**ANSWERS, "bjobs": answer})
        assert error.value.transient


def test_times_without_a_year_are_the_last_ones() -> None:
    """In January, December was last year; a letter after a time is of how it is meant."""
    january = calendar.timegm((2027, 1, 2, 0, 0, 0))
    assert lsf_output.parse_time("Dec 28 19:56", january) == calendar.timegm(
        (2026, 12, 28, 19, 56, 0)
    )
    assert lsf_output.parse_time("Jan  1 09:59 L", january) == calendar.timegm(
        (2027, 1, 1, 9, 59, 0)
    )
    assert lsf_output.parse_time("-", january) is None
    assert lsf_output.parse_time("soon", january) is None


def test_the_queue() -> None:
    """Hosts with their slots, jobs of all, and the queue's own limit rather than its default."""
    state = asyncio.run(manager(queue="normal")[0].queue())
    assert [(node.name, node.allocated, node.up) for node in state.nodes] == [
        ("n1", 35, True),
        ("n2", 11, True),
        ("n3", 1, False),
        ("n4", 0, False),
    ]
    assert state.free == 13
    assert state.longest == 2880 * 60
    assert state.up
    assert [job.id for job in state.jobs] == ["806290", "806297", "806291", "806292"]
    assert [job.own for job in state.jobs if job.id == "806291"] == [False]
    assert "login" not in [node.name for node in state.nodes]  # a host without slots
    closed = text_of("lsf/bqueues.txt").replace("Open:Active", "Open:Inact_Adm")
    answers = {**ANSWERS, "bqueues": CommandResult(0, closed, "")}
    assert not asyncio.run(manager(answers, queue="normal")[0].queue()).up


def test_the_script_says_what_is_asked_for() -> None:
    """Minutes are rounded up; node ranges are LSF's own; the begin is in the zone over there."""
    lsf, shell = manager(queue="normal", account="physics", directives=("-x",))
    request = replace(REQUEST, nodes=(2, 3), begin=1790800380.0, copies=2)
    assert asyncio.run(lsf.submit(request)) == ["806300[1]", "806300[2]"]
    command, script = shell.asked[-1]
    assert command == ("bsub",)
    for line in (
        '#BSUB -J "w[1-2]"',
        "#BSUB -W 2",
        "#BSUB -n 8,12",
        '#BSUB -R "span[ptile=4]"',
        "#BSUB -q normal",
        "#BSUB -P physics",
        "#BSUB -b 2026:09:30:22:33",
        "#BSUB -x",
        "run me",
    ):
        assert line in script.splitlines()
    assert shell.asked[0][0] == ("date", "-d", "@1790800380", "+%Y:%m:%d:%H:%M")
    asyncio.run(lsf.submit(replace(REQUEST, together=True)))
    assert '#BSUB -R "span[hosts=1]"' in shell.asked[-1][1]


@pytest.mark.parametrize(
    ("words", "hint", "transient"),
    [
        ("nope: No such queue. Job not submitted.", '"bqueues"', False),
        ("RUNLIMIT: Cannot exceed queue's hard limit(s). Job not submitted.", "less time", False),
        ("User's pending job threshold reached, pending job limit", "max_pending", False),
        ("batch system daemon not responding ... still trying", "", True),
        ("Something new", "Something new", False),
    ],
)
def test_a_refusal_says_why_and_what_to_change(words: str, hint: str, transient: bool) -> None:
    """In LSF's own words."""
    none = CommandResult(255, "", "Job <w> is not found\n")
    lsf, _ = manager({**ANSWERS, "bsub": CommandResult(255, "", words), "bjobs -a": none})
    with pytest.raises(SiteError) as error:
        asyncio.run(lsf.submit(REQUEST))
    assert words in str(error.value)
    assert hint in str(error.value)
    assert error.value.transient is transient


def test_an_answer_that_was_lost_makes_no_second_job() -> None:
    """Jobs of that name are adopted, an id for each."""
    lost = CommandResult(255, "", "Communication time out")
    only = CommandResult(0, BJOBS, "")
    found = asyncio.run(
        manager({**ANSWERS, "bsub": lost, "bjobs -a -J w": only})[0].submit(REQUEST)
    )
    assert "806293[2]" in found


def test_cancelling_what_is_gone_is_no_error() -> None:
    """But what LSF does not allow is."""
    gone = "Job <1>: Job has already finished\nJob <2>: No matching job found\n"
    asyncio.run(manager({**ANSWERS, "bkill": CommandResult(255, "", gone)})[0].cancel(["1", "2"]))
    denied = CommandResult(255, "", f"{gone}Job <3>: User permission denied\n")
    with pytest.raises(SiteError, match="permission denied"):
        asyncio.run(manager({**ANSWERS, "bkill": denied})[0].cancel(["3"]))


def test_usage_is_what_lsf_counted() -> None:
    """Slots by run time; nothing of jobs that only the accounting knows."""
    used = asyncio.run(manager()[0].usage(["806294", "806291", "700001"]))
    assert list(used) == ["806294"]
    assert used["806294"].processors * used["806294"].seconds == 4 * 3600


def test_a_quality_of_service_is_refused_before_anything_is_tried() -> None:
    """LSF has none."""
    with pytest.raises(InputError, match="qos"):
        LSF(BatchScheduler(manager="lsf", qos="high"))
