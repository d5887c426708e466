"""Slurm's output, line by line; see the folder ``recorded/slurm``."""

import asyncio
import math
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thoroughness import examples

from bursar.formats.job_files import sbatch_options
from bursar.model.errors import InputError, SiteError
from bursar.model.provisioning import BatchScheduler
from bursar.provisioning.lrm import slurm_output, slurm_states
from bursar.provisioning.lrm.command_adapter import expand_hostlist
from bursar.provisioning.lrm.resource_manager import ClusterNode, JobRequest
from bursar.provisioning.lrm.slurm import Slurm
from bursar.provisioning.lrm.slurm_states import minutes, script

RECORDED = Path(__file__).parent / "recorded" / "slurm"
REQUEST = JobRequest(name="job", processors=3, seconds=61.0, script="true", folder="/work dir")


def text(name: str) -> str:
    return (RECORDED / name).read_text()


def test_a_recorded_queue_is_read() -> None:
    """Each job of a real answer, arrays and what never ran included."""
    status = slurm_output.read_status(text("squeue-22.05.txt"))
    assert not status.odd
    reports = status.reports
    assert [(id, r.state, r.how) for id, r in reports.items()] == [
        ("4", "pending", None),
        ("5_0", "pending", None),
        ("5_1", "pending", None),
        ("3", "held", None),
        ("1_0", "running", None),
        ("1_1", "running", None),
        ("1_2", "running", None),
        ("2", "running", None),
        ("14", "ended", "cancelled"),
        ("20", "ended", "rejected"),
        ("23", "ended", "failed"),
        ("29", "running", None),  # completing: nobody says how it came to its end
        ("40", "ended", "cancelled"),
    ]
    assert reports["4"].expected == 1795324643
    assert reports["5_0"].expected is None
    assert reports["2"].nodes == ("n2", "n3", "n4")
    assert (reports["2"].began, reports["2"].until) == (1795324523, 1795324583)
    assert reports["2"].processors == 12
    assert reports["14"].began is None  # withdrawn while it waited: its start is no start
    assert status.raw["1_0"] == "6"
    assert status.raw["1_2"] == "1"


def test_every_state_means_something() -> None:
    """Those of all versions, and one that there is not."""
    status = slurm_output.read_status(text("squeue-states.txt"))
    assert not status.odd
    means = {id: (r.state, r.how) for id, r in status.reports.items()}
    assert means == {
        "100": ("pending", None),
        "101": ("pending", None),
        "102": ("pending", None),
        "103": ("running", None),
        "104": ("ended", "preempted"),
        "105": ("ended", "node-fail"),
        "106": ("ended", "node-fail"),
        "107": ("ended", "timeout"),
        "108": ("ended", "failed"),
        "109": ("held", None),
        "110": ("ended", "cancelled"),
        "111": ("running", None),
        "112": ("running", None),
        "113": ("running", None),
        "114": ("running", None),
        "115": ("pending", None),
        "116": ("held", None),
        "117": ("ended", "timeout"),
        "118": ("ended", "timeout"),
        "119": ("ended", "failed"),
        "120": ("running", None),
        "121": ("ended", "cancelled"),
        "122": ("held", None),
        "123": ("pending", None),  # until others of the user end
        "124": ("held", None),
        "125": ("held", None),  # the quota is used up
        "126": ("unknown", None),
        "127": ("ended", "node-fail"),
        "128": ("pending", None),
        "129_0": ("pending", None),
        "129_1": ("pending", None),
        "129_2": ("pending", None),
        "129_7": ("pending", None),
        "130+1": ("running", None),
        "132": ("ended", "completed"),
    }
    reports = status.reports
    assert reports["101"].reason == "Nodes required for job are DOWN, DRAINED | reserved"
    assert "UnavailableNodes:r1n[01-03],r2n7" in reports["100"].reason
    assert reports["102"].began is None
    assert "DREAMING" in reports["126"].reason
    assert reports["128"].expected is None  # in whose zone?
    assert '"longest"' in reports["122"].reason


GOOD = text("squeue-22.05.txt").splitlines() + text("squeue-states.txt").splitlines()

LINES = st.one_of(
    st.text(max_size=60),
    st.sampled_from(GOOD).flatmap(
        lambda line: st.integers(0, len(line) - 1).map(lambda end: line[:end])
    ),
    st.from_regex(r"job\|[0-9_\[\]\-%+|]{0,20}", fullmatch=True),
    st.from_regex(r"(job|slurm|\|)[ -~]{0,40}", fullmatch=True),
).filter(lambda line: not _is_whole(line))


def _is_whole(line: str) -> bool:
    """Whether it happens to be a line about a job, or several."""
    return any(
        part.startswith("job|") and part.count("|") >= slurm_output.STATUS_FIELDS
        for part in line.splitlines()
    )


@settings(max_examples=examples(300))
@given(st.lists(st.tuples(st.integers(0, len(GOOD)), LINES), max_size=30))
def test_odd_lines_spoil_no_other_job(odd: list[tuple[int, str]]) -> None:
    """Whatever stands between them, the answers about jobs are the same."""
    lines = list(GOOD)
    for place, line in odd:
        lines.insert(place, line)
    plain = slurm_output.read_status("\n".join(GOOD)).reports
    found = slurm_output.read_status("\n".join(lines)).reports
    assert {id: found[id] for id in plain} == plain


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("job|7|7|RUNNING|1700000000|17", "17"),
        ("job|7|7|RUNNING|1|2|many|n1|None", "many"),
        ("job|7|7|RUNNING|1|2|3|n[1-x]|None", "1-x"),
        ("job|7|7|RUNNING|1|2|3|n[1-99999999]|None", "too many"),
        ("job|7|7||1|2|3|n1|None", "no meaning"),
    ],
)
def test_a_line_that_is_not_whole_spoils_its_job(line: str, word: str) -> None:
    """It is unknown, and its line is told; the others stand."""
    reports = slurm_output.read_status(f"{line}\n{GOOD[0]}\n").reports
    assert reports["7"].state == "unknown"
    assert word in reports["7"].reason
    assert reports["4"].state == "pending"


def test_nodes_are_counted_by_what_they_are_good_for() -> None:
    """Of the default partition, or the one that is named; states of all versions."""
    partition = slurm_output.read_nodes(text("sinfo-22.05.txt"), None)
    assert partition.name == "main"
    assert partition.longest is None
    assert partition.up
    assert partition.nodes == (
        ClusterNode(
            name="n1", processors=4, allocated=3, up=True, state="mixed", memory=1000 << 20
        ),
        ClusterNode(
            name="n2", processors=4, allocated=4, up=True, state="allocated", memory=1000 << 20
        ),
    )
    short = slurm_output.read_nodes(text("sinfo-22.05.txt"), "short")
    assert (short.name, short.longest, len(short.nodes)) == ("short", 120.0, 2)
    states = slurm_output.read_nodes(text("sinfo-states.txt"), "main")
    assert states.longest == 86_400.0
    assert "".join(node.name for node in states.nodes if node.up) == "abcdef"
    assert "".join(node.name for node in states.nodes if not node.up) == "ghijkl"
    assert len(states.odd) == 1


def test_the_queue_has_its_order() -> None:
    """Running, then by priority, then held; of this partition; what ended is left out."""
    lines = [
        "job|9|PENDING|1700000000|N/A|1:00:00|4|me|100|main|||Priority".replace("|||", "||"),
        "job|8|PENDING|1700000000|N/A|UNLIMITED|4|you|300|other,main||Resources",
        "job|7|PENDING|1700000000|N/A|10|4|you|900|main||JobHeldUser",
        "job|6|RUNNING|1700000000|1700000001|1-00:00:00|4|you|1|main|n[1-2]|None",
        "job|5|PENDING|1700000000|N/A|10|4|you|200|other||Priority",
        "job|4|COMPLETED|1700000000|1700000001|10|4|you|1|main|n1|None",
        "job|3|PENDING|1700000000",
    ]
    jobs = slurm_output.read_queue("\n".join(lines), "main", "me")
    assert [job.id for job in jobs] == ["6", "8", "9", "7"]
    assert [job.seconds for job in jobs] == [86_400.0, None, 3600.0, 600.0]
    assert [job.own for job in jobs] == [False, False, True, False]
    assert [job.held for job in jobs] == [False, False, False, True]
    assert jobs[0].nodes == ("n1", "n2")


def test_reservations_are_read() -> None:
    """As far as they concern these nodes; whose they are by user or account."""
    nodes = [
        ClusterNode(name=f"n{i}", processors=4, allocated=0, up=True, state="idle") for i in (1, 2)
    ]
    (bur,) = slurm_output.read_windows(
        text("reservations-22.05.txt"), nodes=nodes, me="root", account=None
    )
    assert (bur.start, bur.seconds, bur.processors, bur.own) == (1795324584, 120, 3, True)
    windows = slurm_output.read_windows(
        text("reservations-others.txt"), nodes=nodes, me="me", account="phys102"
    )
    assert [(w.name, w.processors, w.own) for w in windows] == [
        ("maint", 8, False),  # what of it is here
        ("course", 2, True),
    ]
    none = slurm_output.read_windows(
        "No reservations in the system\n", nodes=nodes, me="", account=""
    )
    assert none == ()


def test_records_are_read() -> None:
    """Of the accounting, and of the plain list of jobs that ended."""
    status = slurm_output.read_records(text("sacct.txt"))
    means = {id: (r.state, r.how) for id, r in status.reports.items()}
    assert means == {
        "200": ("ended", "completed"),
        "201": ("ended", "cancelled"),
        "202": ("ended", "cancelled"),
        "203_0": ("ended", "timeout"),
        "203_1": ("ended", "node-fail"),
        "203_2": ("pending", None),
        "203_3": ("pending", None),
        "203_4": ("pending", None),
        "205": ("running", None),
        "206": ("unknown", None),
    }
    assert status.reports["202"].began is None
    assert status.odd == ["207|207|COMPLETED|17000"]
    completions = slurm_output.read_completions(text("completions-22.05.txt"))
    assert {id: r.how for id, r in completions.reports.items()} == {
        "20": "failed",
        "4": "cancelled",
        "2": "cancelled",
        "23": "failed",
    }
    usage = slurm_output.usage_of(completions.reports["2"], 0.0)
    assert usage is not None
    assert usage.processors * usage.seconds == 12 * 76
    assert completions.odd == ["6||1795324523|1795324599|1|00:01:16"]


@pytest.mark.parametrize("line", text("test-only.txt").splitlines())
def test_a_start_estimate_is_read(line: str) -> None:
    """Of each version."""
    assert slurm_output.read_estimate(line) == 1795324703


@pytest.mark.parametrize(
    ("said", "job"),
    [
        ("12\n", "12"),
        ("12;cluster\n", "12"),
        ("sbatch: lua: welcome\n12\n", "12"),
        ("Submitted batch job 12\n", None),
        ("0\n", None),
        ("", None),
    ],
)
def test_a_submitted_job_is_read(said: str, job: str | None) -> None:
    """With a cluster's name, and after what a plugin has to say; else nothing is guessed."""
    assert slurm_output.read_submitted(said) == job


@pytest.mark.parametrize(
    ("word", "seconds"),
    [
        ("2:00", 120), ("1:02:03", 3723), ("2-00:00:00", 172_800), ("1-12", 129_600), ("90", 5400),
        ("UNLIMITED", None), ("infinite", None), ("NOT_SET", None), ("1-00:30", 88_200),
    ],
)  # fmt: skip
def test_limits_are_read(word: str, seconds: float | None) -> None:
    """In all of Slurm's forms (sbatch(1), --time)."""
    assert sbatch_options.parse_time_limit(word) == seconds


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("", []),
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[01-03,7],m", ["n01", "n02", "n03", "n7", "m"]),
        ("r[1-2]n[08-09]", ["r1n08", "r1n09", "r2n08", "r2n09"]),
        ("n[1-2]-ib", ["n1-ib", "n2-ib"]),
        ("(null)", []),
        ("None assigned", []),
    ],
)
def test_names_of_nodes_are_spread(expression: str, names: list[str]) -> None:
    """As scontrol show hostnames does."""
    assert list(expand_hostlist(expression)) == names


# Errors.


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("Batch job submission failed: Invalid partition name specified", '"queue"'),
        ("Batch job submission failed: Invalid account or account/partition combination specified",
         '"account"'),
        ("Batch job submission failed: Invalid qos specification", '"qos"'),
        ("Batch job submission failed: Requested time limit is invalid (missing or exceeds some "
         "limit)", '"longest"'),
        ("Batch job submission failed: Requested node configuration is not available", '"most"'),
        ("Batch job submission failed: Node count specification invalid", '"most"'),
        ("Batch job submission failed: Job violates accounting/QOS policy (job submit limit, "
         "user's size and/or time limits)", '"max_pending"'),
        ("Error creating the reservation: Access/permission denied", "begin time"),
        ("Error creating the reservation: Invalid user id", "begin time"),
        ("Error creating the reservation: Requested nodes are busy", "another time"),
        ("slurm_load_jobs error: Protocol authentication error", "SLURM_CONF"),
        ("Batch job submission failed: User's group not permitted to use this partition",
         "may not use"),
    ],
)  # fmt: skip
def test_complaints_say_what_to_change(said: str, advice: str) -> None:
    """The words are Slurm's, and trying again would not help."""
    error = slurm_states.slurm_error("a job was not submitted", f"sbatch: error: {said}")
    assert said in str(error)
    assert advice in str(error)
    assert "\n" not in str(error)
    assert not error.transient


@pytest.mark.parametrize(
    "said",
    [
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "Batch job submission failed: Socket timed out on send/recv operation",
        "slurm_load_jobs error: Zero Bytes were transmitted or received",
        "sacct: error: slurm_persist_conn_open_without_init: failed to open persistent connection "
        "to host:db:6819: Connection refused",
        "Batch job submission failed: Slurm controller is in standby mode",
        "Slurm temporarily unable to accept job, sleeping and retrying",
        "munge: Munge encode failed: Failed to access socket: No such file or directory",
    ],
)
def test_silence_is_transient(said: str) -> None:
    """Asking again is right."""
    assert slurm_states.slurm_error("jobs cannot be listed", said).transient


# Scripts.


def directives(request: JobRequest, **more: object) -> list[str]:
    made = script(request, BatchScheduler(manager="slurm", **more), now=1000.0)  # type: ignore[arg-type]
    return [line[8:] for line in made.splitlines() if line.startswith("#SBATCH ")]


def changed(**more: object) -> JobRequest:
    values = {name: getattr(REQUEST, name) for name in REQUEST.__dataclass_fields__}
    return JobRequest(**{**values, **more})


def test_a_script_says_all_that_was_asked_for() -> None:
    """Directives of the site first, then ours, which hold against them; then its lines."""
    batch = BatchScheduler(
        manager="slurm", queue="main", account="phys", qos="high", directives=("--mem-per-cpu=1G",),
        setup=("module load python",),
    )  # fmt: skip
    request = changed(reservation="mine", begin=1100.2, least_seconds=60.0, together=True)
    assert script(request, batch, now=1000.0) == (
        "#!/bin/sh\n"
        "#SBATCH --mem-per-cpu=1G\n"
        "#SBATCH --partition=main\n"
        "#SBATCH --account=phys\n"
        "#SBATCH --qos=high\n"
        "#SBATCH --reservation=mine\n"
        "#SBATCH --job-name=job\n"
        '#SBATCH --chdir="/work dir"\n'
        "#SBATCH --output=job-%j.out\n"
        "#SBATCH --no-requeue\n"
        "#SBATCH --time=2\n"
        "#SBATCH --time-min=1\n"
        "#SBATCH --ntasks=3\n"
        "#SBATCH --nodes=1\n"
        "#SBATCH --begin=now+101\n"
        "BURSAR_ELEMENT=$((0 + ${SLURM_ARRAY_TASK_ID:-0}))\n"
        "export BURSAR_ELEMENT\n"
        "module load python\n"
        "true\n"
    )


def test_nodes_and_copies_are_asked_for() -> None:
    """A range of nodes, one number of them, and an array."""
    said = directives(changed(nodes=(2, 4)))
    assert "--nodes=2-4" in said
    assert "--ntasks-per-node=3" in said
    assert "--nodes=4" in directives(changed(nodes=(4, 4)))
    made = script(changed(copies=7), BatchScheduler(manager="slurm"), now=0.0, first=4, copies=3)
    assert "#SBATCH --array=0-2\n" in made
    assert "BURSAR_ELEMENT=$((4 + " in made


@given(st.floats(0.001, 1e7))
def test_limits_are_rounded_up_to_minutes(seconds: float) -> None:
    """A job gets what it asked for, and less than a minute more."""
    assert seconds <= 60 * minutes(seconds) + 1e-6
    assert 60 * minutes(seconds) < max(seconds, 0) + 60 + 1e-6 or minutes(seconds) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "a b"}, {"name": "a\n#SBATCH --uid=0"}, {"name": ""}, {"seconds": math.nan},
        {"folder": "relative"}, {"folder": "/a\nb"}, {"folder": '/a"b'}, {"nodes": (0, 2)},
        {"nodes": (3, 2)}, {"least_seconds": 100.0}, {"reservation": "a b"},
    ],
)  # fmt: skip
def test_nonsense_never_reaches_slurm(wrong: dict[str, object], tmp_path: Path) -> None:
    """The caller hears of it before any command is run."""
    manager = Slurm(BatchScheduler(manager="slurm", environment={"PATH": str(tmp_path)}))
    with pytest.raises(InputError):
        asyncio.run(manager.submit(changed(**wrong)))
    assert manager.shell.commands == 0


@pytest.mark.parametrize("directive", ["--mem=1G\n#SBATCH --uid=0", "mem", ""])
def test_a_directive_is_one(directive: str) -> None:
    """Words of a sites file that are none are the user's fault."""
    with pytest.raises(InputError):
        directives(REQUEST, directives=(directive,))


# Commands that misbehave.


def fake(folder: Path, **scripts: str) -> Slurm:
    """Slurm with commands that say what they are told."""
    for name, lines in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{lines}\n")
        (folder / name).chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    return Slurm(BatchScheduler(manager="slurm", environment={"PATH": path}))


def test_a_missing_slurm_is_missing(tmp_path: Path) -> None:
    """In one line, with what to do; a second try would not help."""
    manager = Slurm(BatchScheduler(manager="slurm", environment={"PATH": str(tmp_path)}))
    with pytest.raises(SiteError, match=r"sbatch: not found .*Slurm installed") as error:
        asyncio.run(manager.submit(changed(folder="/tmp")))
    assert not error.value.transient


def test_nonsense_is_no_answer(tmp_path: Path) -> None:
    """What is not to be read is nobody's end."""
    manager = fake(tmp_path, squeue="echo MOTD: welcome", sbatch="echo slurm-wlm 23.02.7")
    with pytest.raises(SiteError, match=r"23\.02\.7.*welcome") as error:
        asyncio.run(manager.poll(["1"]))
    assert error.value.transient
    manager = fake(tmp_path, sinfo="echo hello", squeue="exit 0", scontrol="exit 0")
    with pytest.raises(SiteError, match="hello") as error:
        asyncio.run(manager.queue())
    assert error.value.transient


def test_a_cancelled_job_has_ended_although_its_node_does_not_answer(tmp_path: Path) -> None:
    """It is completing for as long as the node is not called down, and is charged no further."""
    line = "job|{0}|{0}|COMPLETING|1000|1022|4|n1|None"
    lines = "; ".join(f'echo "{line.format(id)}"' for id in ("7", "8"))
    manager = fake(tmp_path, sbatch="echo 7", squeue=lines, scancel="exit 0")

    async def main() -> None:
        assert await manager.submit(REQUEST) == ["7"]
        assert (await manager.poll(["7"]))["7"].state == "running"
        await manager.cancel(["7"])
        reports = await manager.poll(["7", "8"])
        assert (reports["7"].state, reports["7"].how) == ("ended", "cancelled")
        assert reports["7"].ended == 1022.0
        assert reports["8"].state == "running"
        usage = (await manager.usage(["7"]))["7"]
        assert usage.processors * usage.seconds == 88.0

    asyncio.run(main())


def test_a_job_that_was_put_back_is_charged_for_each_time_that_it_ran(tmp_path: Path) -> None:
    """An operator has requeued it, and it was cancelled while it waited: 12 s, and nothing."""
    gone = tmp_path / "gone"
    manager = fake(
        tmp_path,
        sbatch="echo 7",
        scancel="exit 0",
        squeue=f"""if [ -e {gone} ]; then echo "job|7|7|CANCELLED|1012|1012|0||None"
            else echo "job|7|7|RUNNING|1000|1600|16|n1|None"; fi""",
        sacct="""case "$*" in
            *completion*) echo "7|PENDING|1000|1012|16|12"; echo "7|CANCELLED|1012|1012|0|0";;
            *) echo "Slurm accounting storage is disabled" >&2; exit 1;; esac""",
    )

    async def main() -> None:
        await manager.submit(REQUEST)
        assert (await manager.poll(["7"]))["7"].state == "running"
        gone.touch()
        usage = (await manager.usage(["7"]))["7"]
        assert (usage.processors, usage.seconds, usage.is_whole) == (16, 12.0, True)

    asyncio.run(main())


def test_an_answer_that_is_none_is_looked_for(tmp_path: Path) -> None:
    """sbatch says nothing of a job, but the queue has it by its name; and not twice."""
    manager = fake(tmp_path, sbatch="exit 0", squeue='echo "job|7|7|PENDING|N/A|N/A|1||Priority"')
    assert asyncio.run(manager.submit(REQUEST)) == ["7"]


def test_records_that_do_not_answer_leave_a_job_unknown(tmp_path: Path) -> None:
    """It is not said to have ended, and why is told."""
    manager = fake(
        tmp_path,
        squeue='echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1',
        sacct='echo "sacct: error: Unable to connect to database" >&2; exit 1',
    )
    report = asyncio.run(manager.poll(["7"]))["7"]
    assert report.state == "unknown"
    assert "database" in report.reason


def test_with_accounting_a_job_is_looked_up_there(tmp_path: Path) -> None:
    """By one command more, whatever has become of it."""
    manager = fake(tmp_path, squeue="exit 0", sacct=f"cat {RECORDED}/sacct.txt")
    reports = asyncio.run(manager.poll(["200", "203_0", "999"]))
    assert [r.how for r in reports.values()] == ["completed", "timeout", None]
    assert reports["999"].state == "unknown"
    assert manager.shell.commands == 2
    assert manager.abilities.accounting
    usage = asyncio.run(manager.usage(["200", "202"]))
    assert usage["200"].processors * usage["200"].seconds == 400
    assert usage["202"].processors * usage["202"].seconds == 0


def test_a_record_that_was_never_closed_is_no_job(tmp_path: Path) -> None:
    """A controller that lost its state knows no such job: the records say that it runs for ever."""
    manager = fake(tmp_path, squeue="exit 0", sacct=f"cat {RECORDED}/sacct.txt")
    reports = asyncio.run(manager.poll(["205", "203_3"]))
    assert [r.state for r in reports.values()] == ["unknown", "unknown"]
    assert "running by the records" in reports["205"].reason


@pytest.mark.parametrize(
    ("reason", "state"),
    [
        ("AssocGrpCPUMinutesLimit", "held"),
        ("QOSGrpBillingMinutes", "held"),
        ("AssocGrpCPURunMinutesLimit", "pending"),
        ("AssocGrpCpuLimit", "pending"),
        ("QOSMaxCpuPerUserLimit", "pending"),
        ("Priority", "pending"),
    ],
)
def test_a_quota_that_is_used_up_holds_a_job(reason: str, state: str) -> None:
    """One that becomes free as jobs end does not."""
    assert slurm_states.of_job("PENDING", reason)[0].state == state


def test_a_refused_cancel_is_told(tmp_path: Path) -> None:
    """Of a job that is gone nothing is said, of another's job it is."""
    manager = fake(
        tmp_path,
        scancel='echo "scancel: error: Kill job error on job id 1: Invalid job id specified" >&2;'
        'echo "scancel: error: Kill job error on job id 2: Access/permission denied" >&2; exit 1',
    )
    with pytest.raises(SiteError, match="permission denied") as error:
        asyncio.run(manager.cancel(["1", "2"]))
    assert not error.value.transient
    manager = fake(
        tmp_path,
        scancel='echo "scancel: error: Kill job error on job id 1: Job/step already completing or '
        'completed" >&2; exit 1',
    )
    asyncio.run(manager.cancel(["1"]))
    # Cancelled without complaint, but there never was such a job.
    manager = fake(tmp_path, scancel="exit 0", squeue="exit 0", sacct="exit 0")
    asyncio.run(manager.cancel(["1"]))
    assert asyncio.run(manager.poll(["1"]))["1"].state == "unknown"
    with pytest.raises(InputError):
        asyncio.run(manager.cancel(["--user=root"]))


def test_ten_thousand_jobs_are_one_command(tmp_path: Path) -> None:
    """Too many for a command line: then all of the user's are listed."""
    manager = fake(tmp_path, squeue='echo "job|50000|50000|RUNNING|1|2|1|n1|None"', sacct="exit 0")
    ids = [str(number) for number in range(50_000, 60_000)]
    reports = asyncio.run(manager.poll(ids))
    assert reports["50000"].state == "running"
    assert reports["50001"].state == "unknown"
    assert manager.shell.commands == 2


def test_half_an_array_is_not_left_behind(tmp_path: Path) -> None:
    """Of 1,500 copies the second submission is refused: the first one is withdrawn."""
    manager = fake(
        tmp_path,
        sbatch=f'cd {tmp_path}; [ -e once ] && {{ echo "sbatch: error: Batch job submission '
        'failed: Job violates accounting/QOS policy" >&2; exit 1; }; touch once; echo 7',
        scancel=f'echo "$@" > {tmp_path}/cancelled',
    )
    with pytest.raises(SiteError, match="quota"):
        asyncio.run(manager.submit(changed(copies=1500)))
    assert (tmp_path / "cancelled").read_text() == "--quiet 7\n"
