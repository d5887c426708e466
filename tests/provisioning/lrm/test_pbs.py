"""PBS, held to recorded outputs of OpenPBS and Torque: neither can be run here."""

import asyncio
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.provisioning.lrm.recorded import Recorded, text_of

from bursar.model.errors import InputError, SiteError
from bursar.model.provisioning import BatchScheduler
from bursar.provisioning.lrm import pbs as pbs_output
from bursar.provisioning.lrm.command_runner import CommandResult
from bursar.provisioning.lrm.pbs import PBS
from bursar.provisioning.lrm.resource_manager import JobReport, JobRequest

QSTAT = text_of("pbs/qstat.json")
OPEN = {
    "id -un": CommandResult(0, "ada\n", ""),
    "qstat --version": CommandResult(0, "pbs_version = 20.0.1\n", ""),
    "qstat -f": CommandResult(0, QSTAT, ""),
    "qstat -Q": CommandResult(0, text_of("pbs/queues.json"), ""),
    "pbsnodes": CommandResult(0, text_of("pbs/pbsnodes.json"), ""),
    "qsub": CommandResult(0, "1012.calc0\n", ""),
    "qselect": CommandResult(0, "", ""),
    "qdel": CommandResult(0, "", ""),
}
TORQUE = {
    **OPEN,
    "qstat --version": CommandResult(0, "", "Version: 6.1.2\nCommit: 661e092\n"),
    "qstat -f": CommandResult(0, text_of("pbs/torque-qstat.txt"), ""),
    "qstat -Q": CommandResult(0, text_of("pbs/torque-queues.txt"), ""),
    "pbsnodes": CommandResult(0, text_of("pbs/torque-pbsnodes.txt"), ""),
    "qsub": CommandResult(0, "25[].head\n", ""),
}
REQUEST = JobRequest(name="w", processors=4, seconds=90.5, script="run me", folder="/home/ada/x")
STARTED = 1618432459.0  # Wed Apr 14 20:34:19 2021, UTC


def manager(answers: dict[str, CommandResult] = OPEN, **site: object) -> tuple[PBS, Recorded]:
    shell = Recorded(answers)
    return PBS(BatchScheduler(manager="pbs", **site), shell), shell  # type: ignore[arg-type]


def look(*ids: str, answers: dict[str, CommandResult] = OPEN) -> dict[str, JobReport]:
    return dict(asyncio.run(manager(answers)[0].poll(ids)))


def test_every_state_and_end_of_openpbs_is_told() -> None:
    """Each by its letter, its exit status and its substate."""
    numbers = ["1008", "1009", "1010", "1011[0]", "1011[1]", "1011[2]"]
    ends = {
        "1001": "completed",
        "1002": "timeout",
        "1003": "cancelled",
        "1004": "cancelled",
        "1005": "failed",
        "1006": "rejected",
    }
    reports = look(*(f"{number}.calc0" for number in (*numbers, *ends)))
    states = [reports[f"{number}.calc0"].state for number in numbers]
    assert states == ["running", "pending", "held", "ended", "running", "pending"]
    assert {number: reports[f"{number}.calc0"].how for number in ends} == ends
    running = reports["1008.calc0"]
    assert running.began == STARTED
    assert running.until == STARTED + 4 * 3600
    assert running.processors == 5
    assert running.nodes == ("calc0", "calc1")
    waiting = reports["1009.calc0"]
    assert waiting.expected == STARTED + 4 * 3600
    assert "Insufficient amount of resource" in waiting.reason
    assert "too many failed attempts" in reports["1006.calc0"].reason


def test_torques_text_is_read_like_json() -> None:
    """Dotted attributes, continued lines, arrays, slots as ranges."""
    reports = look("21.head", "22[1].head", "23.head", "24.head", answers=TORQUE)
    assert [reports[id].state for id in reports] == ["running", "ended", "ended", "pending"]
    assert reports["21.head"].processors == 4
    assert reports["21.head"].nodes == ("n1", "n2")
    assert reports["22[1].head"].how == "completed"
    assert reports["23.head"].how == "timeout"  # SIGTERM, and over its walltime
    assert reports["24.head"].processors == 8


def test_one_command_tells_of_all_and_of_those_that_are_gone() -> None:
    """The version is asked once; then a poll is one qstat, history included."""
    pbs, shell = manager()
    asyncio.run(pbs.poll(["1008.calc0"]))
    before = shell.commands
    asyncio.run(pbs.poll([f"{n}.calc0" for n in range(1000, 1500)]))
    assert shell.commands == before + 1
    command = shell.asked[-1][0]
    assert command[:6] == ("qstat", "-f", "-F", "json", "-t", "-x")


def test_an_unknown_job_is_unknown() -> None:
    """Others of the same poll are told; alone it is no failure of the scheduler."""
    reports = look("999.calc0", "1008.calc0")
    assert reports["999.calc0"].state == "unknown"
    assert reports["1008.calc0"].state == "running"
    none = {**OPEN, "qstat -f": CommandResult(153, "", "qstat: Unknown Job Id 999.calc0\n")}
    assert look("999.calc0", answers=none)["999.calc0"].state == "unknown"


def test_a_server_without_history_is_asked_without_it() -> None:
    """Once it has said so."""
    refusal = CommandResult(1, "", "qstat: PBS is not configured to maintain job history\n")
    answers = {**OPEN, "qstat -f -F json -t -x": refusal}
    pbs, shell = manager(answers)
    assert asyncio.run(pbs.poll(["1008.calc0"]))["1008.calc0"].state == "running"
    before = shell.commands
    asyncio.run(pbs.poll(["1008.calc0"]))
    assert shell.commands == before + 1


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=80))
def test_an_odd_job_spoils_its_own_answer_only(odd: str) -> None:
    """Whatever its name holds, quoted or not, the others are told as before."""
    spoiled = QSTAT.replace('"Job_Name":"wide"', f'"Job_Name":{odd}')
    reports = look("1008.calc0", "1010.calc0", "1009.calc0", answers=_with(spoiled))
    expected = look("1008.calc0", "1010.calc0")
    assert {id: reports[id] for id in expected} == expected
    assert reports["1009.calc0"].state in ("pending", "unknown")


def _with(text: str) -> dict[str, CommandResult]:
    return {**OPEN, "qstat -f": CommandResult(0, text, "")}


def test_a_name_of_digits_without_quotes_is_read_for_itself() -> None:
    """As OpenPBS prints it, with a leading zero: no valid JSON."""
    spoiled = QSTAT.replace('"Job_Name":"ntest"', '"Job_Name":0012')
    with pytest.raises(json.JSONDecodeError):
        json.loads(spoiled)
    reports = look("1008.calc0", "1009.calc0", answers=_with(spoiled))
    assert reports["1008.calc0"].state == "unknown"
    assert "cannot be read" in reports["1008.calc0"].reason
    assert reports["1009.calc0"].state == "pending"


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ('"job_state":"R"', '"job_state":"?"', "'?'"),
        ('"job_state":"R"', '"job_state":"M"', "another server"),
        ('"walltime":"04:00:00"', '"walltime":"soon"', "cannot be read"),
        (
            '"ncpus":5,\n                "nodect"',
            '"ncpus":"x",\n                "nodect"',
            "cannot",
        ),
    ],
)
def test_what_has_no_name_here_is_unknown(before: str, after: str, words: str) -> None:
    """And says what it was."""
    report = look("1008.calc0", answers=_with(QSTAT.replace(before, after, 1)))["1008.calc0"]
    assert report.state == "unknown"
    assert words in report.reason


def test_what_is_no_listing_is_worth_asking_again() -> None:
    """Then nobody knows."""
    with pytest.raises(SiteError) as error:
        look("1008.calc0", answers=_with('{"hello": 1'))
    assert error.value.transient


def test_the_queue_of_openpbs() -> None:
    """Nodes with what is taken of them, jobs of all, running ones first, and the limit."""
    state = asyncio.run(manager(queue="workq")[0].queue())
    nodes = [(node.name, node.processors, node.allocated, node.up) for node in state.nodes]
    assert nodes == [
        ("calc0", 32, 2, True),
        ("calc1", 32, 32, True),
        ("calc2", 32, 0, False),
    ]
    assert state.free == 30
    assert state.nodes[0].memory == 527672488 * 1024
    assert state.longest == 24 * 3600
    assert [job.id for job in state.jobs if job.running] == ["1008.calc0", "1011[1].calc0"]
    assert [job.own for job in state.jobs if job.id == "1009.calc0"] == [False]
    assert [job.id for job in state.jobs if job.held] == ["1010.calc0"]
    assert not asyncio.run(manager(queue="gpuq")[0].queue()).up
    with pytest.raises(SiteError, match="no queue nope, but gpuq, workq"):
        asyncio.run(manager(queue="nope")[0].queue())


def test_the_queue_of_torque() -> None:
    """Slots that jobs hold are counted, as ranges and one by one."""
    state = asyncio.run(manager(TORQUE, queue="batch")[0].queue())
    nodes = [(node.name, node.processors, node.allocated, node.up) for node in state.nodes]
    assert nodes == [("n1", 8, 2, True), ("n2", 2, 2, True), ("n3", 8, 0, False)]
    assert state.longest == 48 * 3600


def test_the_script_says_what_is_asked_for() -> None:
    """Directives of the request, then those of the site, its lines, and the script."""
    pbs, shell = manager(
        queue="workq", account="physics", directives=("-l place=excl",), setup=("module load x",)
    )
    begin = replace(REQUEST, together=True, begin=1618432459.2)
    assert asyncio.run(pbs.submit(begin)) == ["1012.calc0"]
    lines = shell.asked[-1][1].splitlines()
    for line in (
        "#PBS -N w",
        "#PBS -o /home/ada/x/",
        "#PBS -l walltime=00:01:31",
        "#PBS -l select=1:ncpus=4",
        "#PBS -q workq",
        "#PBS -A physics",
        "#PBS -a 202104142034.20",
        "cd /home/ada/x || exit 1",
    ):
        assert line in lines
    assert lines.index("#PBS -l place=excl") > lines.index("#PBS -q workq")
    assert lines[-2:] == ["module load x", "run me"]


def test_arrays_have_an_id_for_each_job() -> None:
    """From 0 on, as the directives ask for them."""
    pbs, shell = manager({**OPEN, "qsub": CommandResult(0, "1012[].calc0\n", "")})
    assert asyncio.run(pbs.submit(replace(REQUEST, copies=3))) == [
        "1012[0].calc0",
        "1012[1].calc0",
        "1012[2].calc0",
    ]
    assert "#PBS -J 0-2" in shell.asked[-1][1]
    pbs, shell = manager(TORQUE)
    assert asyncio.run(pbs.submit(replace(REQUEST, copies=2, nodes=(2, 3))))[1] == "25[1].head"
    assert "#PBS -t 0-1" in shell.asked[-1][1]
    assert "#PBS -l nodes=2:ppn=4" in shell.asked[-1][1]


@pytest.mark.parametrize(
    ("words", "hint", "transient"),
    [
        ("qsub: Unknown queue", '"qstat -Q"', False),
        ("qsub: Job violates queue and/or server resource limits", "less time", False),
        ("qsub: would exceed complex's per-user limit", "max_pending", False),
        ("qsub: Invalid account", '"account"', False),
        ("Connection refused\nqsub: cannot connect to server calc0 (errno=111)", "", True),
        ("qsub: Something new", "Something new", False),
    ],
)
def test_a_refusal_says_why_and_what_to_change(words: str, hint: str, transient: bool) -> None:
    """In PBS's own words; what is transient is looked for by its name before it is raised."""
    pbs, shell = manager({**OPEN, "qsub": CommandResult(1, "", words)})
    with pytest.raises(SiteError) as error:
        asyncio.run(pbs.submit(REQUEST))
    assert words.splitlines()[-1] in str(error.value)
    assert hint in str(error.value)
    assert error.value.transient is transient
    assert any(command[0] == "qselect" for command, _ in shell.asked) is transient


def test_an_answer_that_was_lost_makes_no_second_job() -> None:
    """The job is there under its name, and adopted."""
    lost = CommandResult(1, "", "qsub: End of File")
    pbs, _ = manager({**OPEN, "qsub": lost, "qselect": CommandResult(0, "1013.calc0\n", "")})
    assert asyncio.run(pbs.submit(REQUEST)) == ["1013.calc0"]


def test_cancelling_what_is_gone_is_no_error() -> None:
    """But what PBS does not allow is."""
    gone = "qdel: Job has finished 1001.calc0\nqdel: Unknown Job Id 7.calc0\n"
    pbs, _ = manager({**OPEN, "qdel": CommandResult(35, "", gone)})
    asyncio.run(pbs.cancel(["1001.calc0", "7.calc0"]))
    pbs, _ = manager(
        {**OPEN, "qdel": CommandResult(1, "", f"{gone}qdel: Unauthorized Request 8.calc0")}
    )
    with pytest.raises(SiteError, match="Unauthorized Request"):
        asyncio.run(pbs.cancel(["1001.calc0", "8.calc0"]))


def test_usage_is_what_pbs_counted() -> None:
    """Of those that ran; one that never did took nothing that is known."""
    used = asyncio.run(manager()[0].usage(["1001.calc0", "1003.calc0", "999.calc0"]))
    assert list(used) == ["1001.calc0"]
    assert used["1001.calc0"].processors * used["1001.calc0"].seconds == 600
    assert used["1001.calc0"].how == "completed"


def test_nonsense_is_the_callers_fault() -> None:
    """A directive is one line, a name is a name."""
    for request, site in (
        (replace(REQUEST, name="a b"), {}),
        (replace(REQUEST, processors=0), {}),
        (REQUEST, {"directives": ("-l a\n#PBS -q x",)}),
    ):
        with pytest.raises(InputError):
            asyncio.run(manager(**site)[0].submit(request))


def test_slots_of_torque_are_counted() -> None:
    """0-3/7.x holds four, 5/8.x one."""
    node = pbs_output.read_node("n", {"state": "free", "np": "8", "jobs": "0-3/7.x,5/8.x"})
    assert node.allocated == 5
