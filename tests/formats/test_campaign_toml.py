"""Campaigns written in TOML."""

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thoroughness import examples

from bursar.formats.campaign_file import read_campaign, read_campaign_toml, statement_digest
from bursar.formats.sweep import parse_template
from bursar.model.campaign import Campaign, Goal, Retry
from bursar.model.errors import InputError
from bursar.model.matching import Matching
from bursar.model.task import Exec, File, OnError, Shell, Task

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "campaign.md"
EXAMPLES = re.findall(r"^```toml\n(.*?)^```", PAGE.read_text(), re.M | re.S)


def read(folder: Path, text: str) -> Campaign:
    path = folder / "c.toml"
    path.write_text(text)
    return read_campaign(path)


def refused(folder: Path, text: str) -> InputError:
    with pytest.raises(InputError) as caught:
        read(folder, text)
    assert "\n" not in caught.value.message
    caught.value.where = caught.value.where.replace(f"{folder}/", "")
    return caught.value


def lines(campaign: Campaign) -> list[str]:
    return [
        step.line for t in campaign.workflow.tasks for step in t.steps if isinstance(step, Shell)
    ]


@pytest.fixture
def surroundings(tmp_path: Path) -> Path:
    """A folder with the files the documentation's examples speak of."""
    (tmp_path / "models").mkdir()
    for name in ("models/A.dat", "models/B.dat", "solve.py"):
        (tmp_path / name).write_text("")
    (tmp_path / "cases.csv").write_text("angle,speed\n1,50\n2,100\n3,200\n")
    return tmp_path


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: text.split("\n")[1][:30])
def test_every_example_of_the_documentation_reads(example: str, surroundings: Path) -> None:
    """What the page shows is what the reader takes."""
    assert read(surroundings, example).workflow.tasks


def test_the_examples_mean_what_the_page_says(surroundings: Path) -> None:
    """Counts and joins stated in the text around the examples."""
    wing, epidemic, designs = (
        next(e for e in EXAMPLES if f'name = "{name}"' in e)
        for name in ("wing", "epidemic", "designs")
    )
    # 37 angles from -45 to 45 by 2.5, three speeds.
    assert len(read(surroundings, wing).workflow.tasks) == 111

    workflow = read(surroundings, epidemic).workflow
    assert [t.name for t in workflow.tasks] == ["simulate"] * 12 + ["mean"] * 4 + ["draw"]
    assert workflow.parents[12:] == ((0, 1, 2), (3, 4, 5), (6, 7, 8), (9, 10, 11), (12, 13, 14, 15))

    tasks = read(surroundings, designs).workflow.tasks
    assert [(t.parameters["model"], t.parameters["angle"]) for t in tasks] == [
        ("A", 1), ("A", 2), ("A", 3), ("B", 1), ("B", 2), ("B", 3),
    ]  # fmt: skip


def test_a_task_carries_every_setting(tmp_path: Path) -> None:
    """Each key of the file arrives in the model, in the model's units."""
    (tmp_path / "in.txt").write_text("")
    campaign = read(
        tmp_path,
        """
        [campaign]
        name = "all"
        [tasks.first]
        command = "true"
        [tasks.whole]
        command = ["prog", "{outputs}", "{id}"]
        inputs = ["./in.txt", { name = "in.txt" }]
        outputs = [{ name = "a.bin", size = "1 MiB" }, "b//c"]
        after = ["first"]
        processors = 4
        runtime = "1h"
        wall_limit = 7200
        memory = "2 GB"
        retries = 5
        requirements = "Memory > 2"
        environment = { A = "x {id}", B = 2, C = true }
        on_error = "ignore"
        [goal]
        deadline = "2h"
        budget = "40 SU"
        trade_off = 1
        on_budget = { "80%" = "warn", "1" = "stop" }
        [retry]
        attempts = 1
        backoff = 0
        ceiling = "2m"
        """,
    )

    assert campaign.workflow.tasks[1] == Task(
        id="whole",
        name="whole",
        steps=(OnError(ignore=True), Exec(("prog", "a.bin", "b/c", "whole"))),
        inputs=(File("in.txt"),),
        outputs=(File("a.bin", 2**20), File("b/c")),
        after=("first",),
        processors=4,
        runtime=3600.0,
        wall_limit=7200.0,
        memory=2 * 10**9,
        environment={"A": "x whole", "B": "2", "C": "true"},
        matching=Matching(requirements="Memory > 2"),
        retries=5,
    )
    assert campaign.goal == Goal(
        deadline=7200.0,
        budget=40.0,
        currency="SU",
        trade_off=1.0,
        on_budget={0.8: "warn", 1.0: "stop"},
    )
    assert campaign.retry == Retry(attempts=1, backoff=0.0, ceiling=120.0)
    assert campaign.root == tmp_path
    assert not campaign.recorded


def test_what_is_not_said_stays_unknown(tmp_path: Path) -> None:
    """No runtime, memory, price or goal is made up."""
    campaign = read(tmp_path, '[campaign]\ncommand = "true"\n')

    assert campaign.name == "c"
    assert campaign.goal == Goal()
    assert campaign.workflow.tasks == (Task(id="c", name="c", steps=(Shell("true"),)),)


def test_settings_for_all_give_way_to_a_tasks_own(tmp_path: Path) -> None:
    """[task] fills in; environments are merged variable by variable."""
    campaign = read(
        tmp_path,
        """
        task = { runtime = 5, processors = 2, environment = { A = "1", B = "1" } }
        [tasks.a]
        command = "true"
        [tasks.b]
        command = "true"
        processors = 3
        environment = { B = "2" }
        """,
    )
    a, b = campaign.workflow.tasks
    assert (a.runtime, a.processors, a.environment) == (5.0, 2, {"A": "1", "B": "1"})
    assert (b.runtime, b.processors, b.environment) == (5.0, 3, {"A": "1", "B": "2"})


def test_a_tasks_choice_of_parameters_stands_before_the_sweep_of_all(tmp_path: Path) -> None:
    """A sweep in [task] is for tasks that choose nothing of their own."""
    campaign = read(
        tmp_path,
        """
        parameters = { x = [1, 2], y = [1, 2, 3] }
        task = { parameters = { z = [7] } }
        [tasks.a]
        command = "a {x}"
        over = ["x"]
        [tasks.b]
        command = "b {z}"
        """,
    )
    assert lines(campaign) == ["a 1", "a 2", "b 7"]


def test_one_command_is_swept_even_if_it_mentions_nothing(tmp_path: Path) -> None:
    """A hundred rolls of the same dice are a hundred tasks."""
    text = '[campaign]\ncommand = "roll"\n[parameters]\nrepetition = {from=1,to=100,step=1}\n'
    assert len(read(tmp_path, text).workflow.tasks) == 100


def test_sets_meet_where_their_shared_parameters_agree(tmp_path: Path) -> None:
    """Same sweep: one to one. A subset: one to many, and many to one. Nothing shared: all."""
    campaign = read(
        tmp_path,
        """
        [parameters]
        x = [1, 2]
        y = ["a", "b"]
        [tasks.make]
        command = "make {x} {y}"
        outputs = ["m-{x}-{y}"]
        [tasks.use]
        command = "use {x} {y} {inputs}"
        inputs = [{ from = "make" }]
        [tasks.prepare]
        over = ["y"]
        command = "prepare"
        [tasks.late]
        over = ["x", "y"]
        command = "late"
        after = ["prepare"]
        [tasks.other]
        parameters = { z = [1, 2] }
        command = "other {z}"
        after = ["prepare"]
        """,
    )
    ids = [t.id for t in campaign.workflow.tasks]
    parents = {ids[i]: [ids[p] for p in ps] for i, ps in enumerate(campaign.workflow.parents) if ps}
    assert parents == {
        "use-0": ["make-0"],
        "use-1": ["make-1"],
        "use-2": ["make-2"],
        "use-3": ["make-3"],
        "late-0": ["prepare-0"],
        "late-1": ["prepare-1"],
        "late-2": ["prepare-0"],
        "late-3": ["prepare-1"],
        "other-0": ["prepare-0", "prepare-1"],
        "other-1": ["prepare-0", "prepare-1"],
    }


def test_inputs_by_pattern_come_from_tasks_and_from_the_folder(tmp_path: Path) -> None:
    """A pattern sees what will be made and what lies there; a set is no input of its own."""
    (tmp_path / "part-9.csv").write_text("")
    campaign = read(
        tmp_path,
        """
        [tasks.make]
        parameters = { i = [1, 2] }
        command = "make {i}"
        outputs = ["part-{i}.csv", "log/{i}.txt"]
        [tasks.gather]
        command = "cat {inputs}"
        inputs = [{ files = "part-*.csv" }]
        outputs = ["part-all.csv"]
        [tasks.logs]
        command = "cat {inputs}"
        inputs = [{ from = "make", files = "**/*.txt" }]
        """,
    )
    assert lines(campaign)[2:] == [
        "cat part-1.csv part-2.csv part-9.csv",
        "cat log/1.txt log/2.txt",
    ]
    assert campaign.workflow.parents[2:] == ((0, 1), (0, 1))


def test_ids_sizes_and_processors_follow_the_parameters(tmp_path: Path) -> None:
    """Whatever is text may hold a parameter; single tasks are known by their ids."""
    campaign = read(
        tmp_path,
        """
        [tasks.run]
        id = "run-{n:02d}"
        parameters = { n = [1, 12] }
        command = "run {n}"
        processors = "{n}"
        runtime = "{n} min"
        outputs = [{ name = "o{n}", size = "{n} kB" }]
        [tasks.last]
        command = "true"
        after = ["run-12"]
        """,
    )
    one, twelve, last = campaign.workflow.tasks
    assert [one.id, twelve.id] == ["run-01", "run-12"]
    assert (twelve.processors, twelve.runtime, twelve.outputs) == (12, 720.0, (File("o12", 12000),))
    assert last.after == ("run-12",)


@given(
    st.text(st.characters(blacklist_characters="\0", blacklist_categories=("Cs",)), max_size=20),
    st.sampled_from(
        ["echo {x}", "echo '{x}'", 'echo "{x}"', "echo \"$(echo '{x}')\"", "echo a'b'{x}"]
    ),
)
@settings(max_examples=examples(40))
def test_a_value_reaches_the_program_as_it_is(value: str, line: str) -> None:
    """Whatever the text and the quotes around it, the shell passes on the very value."""
    command = parse_template("printf '[%s]' " + line.removeprefix("echo "), shell=True)
    made = subprocess.run(
        ["/bin/sh", "-c", command.render({"x": value})], capture_output=True, check=True
    ).stdout.decode()

    expected = value
    if "$(" in line:  # the inner echo ends its output by newlines, which $() takes away
        return
    if line.endswith("'b'{x}"):
        expected = "ab" + value
    assert made == f"[{expected}]"


def test_quotes_within_a_command_substitution_count_for_themselves() -> None:
    """Within "$(...)" the shell splits words again, so values are quoted as bare ones."""
    template = parse_template('echo "$(cat {x})" # don\'t {x}\ncat "{x}"', shell=True)
    assert template.render({"x": "a; b"}) == "echo \"$(cat 'a; b')\" # don't 'a; b'\ncat \"a; b\""


def test_braces_and_parts_of_paths() -> None:
    """Doubled braces are braces; .name and .stem cut a path; formats are Python's."""
    template = parse_template("{{{p.name}}} {p.stem} {n:03d} {b} ${{HOME}}")
    assert template.render({"p": "d/a.dat", "n": 7, "b": True}) == "{a.dat} a 007 true ${HOME}"


TASK = '[tasks.a]\ncommand = "true"\n'
SWEEP = '[parameters]\nx = [1, 2]\n[tasks.a]\ncommand = "echo {x}"\n'

WRONG = [
    ("", "c.toml", "is empty"),
    ("[campaign", "c.toml:1:10", "is not TOML"),
    ("a = 1\nb = [1,\n", "c.toml:2:", "is not TOML"),
    ("x = " + "[" * 5000, "c.toml", "nested too deeply"),
    ("x = " + "9" * 5000, "c.toml", "is not TOML"),
    ('[campaign]\nname = "c"\n', "c.toml", "has no task"),
    ("[tasks]\n", "c.toml", "has no task"),
    ("[campaign]\nname = 3\n", "c.toml:2: campaign.name", "expected text, got a whole number"),
    ('[campaign]\nname = ""\ncommand = "a"', "c.toml:2: campaign.name", "printable"),
    ("campaign = 3", "c.toml:1: campaign", "expected a table, got a whole number"),
    (TASK + "[gaol]\n", "c.toml:3: gaol", "unknown key"),
    (TASK + 'inptus = ["x"]\n', "c.toml:3: tasks.a.inptus", "unknown key"),
    (TASK + '"in\\nputs" = 1\n', "c.toml", "unknown key"),
    ('[campaign]\ncommand = "a"\n' + TASK, "c.toml:2: campaign.command", "not both"),
    ("[tasks.a]\nruntime = 3\n", "c.toml:1: tasks.a.command", "expected a command"),
    ("[tasks]\na = 3\n", "c.toml:2: tasks.a", "expected a table"),
    ('[tasks.a]\ncommand = " "\n', "c.toml:2: tasks.a.command", "empty"),
    ("[tasks.a]\ncommand = []\n", "c.toml:2: tasks.a.command", "expected a program"),
    ('[tasks.a]\ncommand = [""]\n', "c.toml:2: tasks.a.command", "expected a program"),
    ('[tasks.a]\ncommand = "a\\u0000"\n', "c.toml:2: tasks.a.command", "NUL"),
    ('[tasks.""]\ncommand = "a"\n', "c.toml", "needs a name"),
    ('[[task]]\ncommand = "a"\n[[task]]\ncommad = "a"\n', "c.toml:4: task[1].commad", "unknown"),
    ('[[task]]\nid = "a"\ncommand = "a"\n' + TASK, "task[0]", "duplicate task id"),
    ('task = [3]\n', "c.toml:1: task[0]", "expected a table"),
    (TASK + "processors = 0\n", "c.toml:3: tasks.a.processors", "at least 1, got 0"),
    (TASK + 'processors = "two"\n', "tasks.a.processors", 'got "two"'),
    (TASK + "processors = 1.5\n", "tasks.a.processors", "expected a whole number or text"),
    (TASK + "processors = true\n", "tasks.a.processors", "expected"),
    (TASK + "processors = 99999999999\n", "tasks.a.processors", "expected"),
    (TASK + "runtime = -1\n", "c.toml:3: tasks.a.runtime", "negative"),
    (TASK + "runtime = nan\n", "tasks.a.runtime", "expected a time"),
    (TASK + "runtime = true\n", "tasks.a.runtime", "expected"),
    (TASK + 'runtime = "3 parsecs"\n', "tasks.a.runtime", "3 parsecs"),
    (TASK + "runtime = 1979-05-27\n", "tasks.a.runtime", "expected"),
    (TASK + "wall_limit = 0\n", "tasks.a.wall_limit", "positive"),
    (TASK + 'memory = "3 miles"\n', "tasks.a.memory", "3 miles"),
    (TASK + "retries = -1\n", "tasks.a.retries", "0"),
    (TASK + 'on_error = "panic"\n', "tasks.a.on_error", 'expected "fail" or "ignore"'),
    (TASK + 'outputs = ["../f"]\n', "c.toml:3: tasks.a.outputs[0]", ".."),
    (TASK + 'outputs = ["/f"]\n', "tasks.a.outputs[0]", "relative"),
    (TASK + 'outputs = [""]\n', "tasks.a.outputs[0]", "relative"),
    (TASK + 'outputs = ["."]\n', "tasks.a.outputs[0]", "relative"),
    (TASK + 'outputs = [{ name = "f", size = -1 }]\n', "tasks.a.outputs[0].size", "negative"),
    (TASK + "outputs = [{ size = 1 }]\n", "tasks.a.outputs[0]", '"name"'),
    (TASK + 'outputs = [{ name = "f", sise = 1 }]\n', "tasks.a.outputs[0].sise", "unknown key"),
    (TASK + 'outputs = "f"\n', "tasks.a.outputs", "expected a list, got text"),
    (TASK + "inputs = [{ size = 3 }]\n", "tasks.a.inputs[0]", "expected either"),
    (TASK + 'inputs = [{ from = "a", name = "b" }]\n', "tasks.a.inputs[0]", "either"),
    (TASK + 'inputs = [{ files = "a", size = 3 }]\n', "tasks.a.inputs[0].size", "name"),
    (TASK + 'inputs = [{ files = "*.none" }]\n', "tasks.a.inputs[0].files", "*.none"),
    (TASK + 'inputs = [{ files = "../*" }]\n', "tasks.a.inputs[0].files", ".."),
    (TASK + 'inputs = [{ files = "**/**/a/**/b/**" }]\n', "tasks.a.inputs[0].files", "**"),
    (TASK + 'inputs = [{ from = "a" }]\n', "tasks.a.inputs[0].from", "itself"),
    (TASK + 'inputs = [{ from = "b" }]\n', "tasks.a.inputs[0].from", 'unknown task "b"'),
    (
        TASK + '[tasks.b]\ncommand = "b"\ninputs = [{ from = "a" }]\n',
        "tasks.b.inputs[0].from",
        "no outputs",
    ),
    (
        TASK + 'outputs = ["f"]\n[tasks.b]\ncommand = "b"\n'
        'inputs = [{ from = "a", files = "g*" }]\n',
        "tasks.b.inputs[0].files",
        '"g*"',
    ),
    (TASK + 'after = ["b"]\n', "c.toml:3: tasks.a.after[0]", 'unknown parent "b"'),
    (TASK + 'after = ["a"]\n', "tasks.a.after[0]", "itself"),
    (TASK + 'after = ["b"]\n[tasks.b]\ncommand = "b"\nafter = ["a"]\n', "c.toml", "cycle"),
    (
        TASK + 'outputs = ["f"]\n[tasks.b]\ncommand = "b"\noutputs = ["f"]\n',
        "c.toml:6: tasks.b.outputs",
        "already made",
    ),
    (TASK + 'environment = { "A=B" = "1" }\n', "environment", "="),
    (TASK + "environment = { A = [1] }\n", "tasks.a.environment", "expected"),
    (TASK + 'environment = { A = "{y}" }\n', "tasks.a.environment.A", 'unknown parameter "y"'),
    (TASK + 'over = ["x"]\n', "tasks.a.over", "needs [parameters]"),
    (SWEEP + 'over = ["xx"]\n', "tasks.a.over[0]", 'unknown parameter "xx"'),
    (SWEEP + 'over = ["x", "x"]\n', "tasks.a.over[1]", "twice"),
    (SWEEP + "over = []\n", "tasks.a.command", 'unknown parameter "x"'),
    (SWEEP + "over = []\nparameters = { y = 1 }\n", "tasks.a.over", "not both"),
    (SWEEP + 'id = "same-{x:.0f}-{y}"\n', "tasks.a.id", 'unknown parameter "y"'),
    (SWEEP + 'id = "{id}"\n', "tasks.a.id", 'unknown parameter "id"'),
    (
        '[parameters]\nx = [1, 1]\n[tasks.a]\ncommand = "a"\nid = "i-{x}"\n',
        "tasks.i-1",
        "duplicate",
    ),
    (SWEEP + 'outputs = ["{outputs}"]\n', "tasks.a.outputs[0]", 'unknown parameter "outputs"'),
    (SWEEP + 'outputs = ["same"]\n', "outputs", "already made"),
    (SWEEP + 'runtime = "{x} parsecs"\n', "tasks.a.runtime", "1 parsecs"),
    (SWEEP + 'processors = "{x}.5"\n', "tasks.a.processors", "1.5"),
    ('[tasks.a]\ncommand = "awk {print}"\n', "tasks.a.command", 'unknown parameter "print"'),
    ('[tasks.a]\ncommand = "awk {print $1}"\n', "tasks.a.command", "begins no {parameter}"),
    ('[tasks.a]\ncommand = "}"\n', "tasks.a.command", "ends no {parameter}"),
    (
        '[parameters]\nx = ["t"]\n[tasks.a]\ncommand = "a {x:03d}"\n',
        "tasks.a.command",
        "cannot be written",
    ),
    ('[parameters]\nx = ["t"]\n[tasks.a]\ncommand = "`a {x}`"\n', "tasks.a.command", "`...`"),
    ('[parameters]\nx = ["t"]\n[tasks.a]\ncommand = "\\\\{x}"\n', "tasks.a.command", "backslash"),
    (TASK + "[goal]\ntrade_off = 2\n", "c.toml:4: goal.trade_off", "1"),
    (TASK + "[goal]\ntrade_off = nan\n", "c.toml:4: goal.trade_off", ""),
    (TASK + '[goal]\nbudget = "lots"\n', "goal.budget", "lots"),
    (TASK + "[goal]\nbudget = -1\n", "goal.budget", "negative"),
    (TASK + "[goal]\nbudget = 1e300\n", "goal.budget", "larger"),
    (TASK + '[goal]\ndeadline = "soon"\n', "goal.deadline", "soon"),
    (TASK + "[goal]\ndeadline = 0\n", "goal.deadline", "positive"),
    (TASK + '[goal]\non_budget = { "150%" = "stop" }\n', "goal.on_budget", "150%"),
    (TASK + '[goal]\non_budget = { "0%" = "stop" }\n', "goal.on_budget", "above"),
    (TASK + '[goal]\non_budget = { "50%" = "stop", "0.5" = "warn" }\n', "goal.on_budget", "twice"),
    (TASK + '[goal]\non_budget = { "50%" = "explode" }\n', "goal.on_budget", 'expected "warn"'),
    (TASK + "[retry]\nattempts = 0\n", "retry.attempts", "1"),
    (TASK + "[retry]\nbackoff = -1\n", "retry.backoff", "negative"),
    (TASK + 'inputs = ["data.cvs"]\n', "c.toml: tasks.a.inputs", '"data.cvs"'),
]  # fmt: skip


@pytest.mark.parametrize(("text", "where", "message"), WRONG)
def test_what_is_wrong_is_refused_at_its_place(
    text: str, where: str, message: str, tmp_path: Path
) -> None:
    """File, line and field; what was found; what was expected."""
    (tmp_path / "data.csv").write_text("")
    error = refused(tmp_path, text)
    assert where in error.where
    assert error.where.startswith("c.toml")
    assert message in error.message


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (TASK + "[gaol]\n", '"goal"'),
        ('[campaign]\nname = "c"\ndeadline = 3\n', "a key of [goal]"),
        ('[campaign]\nname = "c"\ninputs = []\n', "a key of [task]"),
        ('[task.a]\ncommand = "true"\n', '"tasks"'),
        (TASK + 'inptus = ["x"]\n', '"inputs"'),
        (TASK + 'on_error = "ingore"\n', '"ignore"'),
        (SWEEP + 'environment = { A = "{indx}" }\n', '"index"'),
        (TASK + 'after = ["proyect"]\n[tasks.project]\ncommand = "b"\n', '"project"'),
        (TASK + 'inputs = ["data.cvs"]\n', '"data.csv"'),
        (TASK + 'inputs = ["resluts"]\n[tasks.b]\ncommand="b"\noutputs=["results"]\n', '"results"'),
        ('[tasks.a]\ncommand = "echo ${HOME}"\n', "{{HOME}}"),
    ],
)  # fmt: skip
def test_a_hint_names_what_was_probably_meant(text: str, hint: str, tmp_path: Path) -> None:
    """The nearest known word, or how to write what was meant."""
    (tmp_path / "data.csv").write_text("")
    error = refused(tmp_path, text)
    assert error.hint is not None
    assert hint in error.hint


def test_a_line_too_long_for_the_system_is_refused_before_it_runs(tmp_path: Path) -> None:
    """Ten thousand names do not fit one argument; as list items they are single ones."""
    text = """
        [tasks.make]
        parameters.i = { from = 1, to = 10000, step = 1 }
        command = "make {i}"
        outputs = ["a-name-of-some-length-%s-{i}"]
        [tasks.gather]
        inputs = [{ from = "make" }]
    """ % ("x" * 20)
    error = refused(tmp_path, text + 'command = "cat {inputs}"')
    assert "tasks.gather.command" in error.where
    assert "131,071" in error.message
    gather = read(tmp_path, text + 'command = ["cat", "{inputs}"]').workflow.tasks[-1]
    assert isinstance(gather.steps[0], Exec)
    assert len(gather.steps[0].argv) == 10001


def test_too_many_dependencies_are_refused_before_memory_runs_out(tmp_path: Path) -> None:
    """All to all between 4,000 and 4,000 tasks would be sixteen million."""
    error = refused(
        tmp_path,
        """
        [tasks.a]
        parameters.i = { from = 1, to = 4000, step = 1 }
        command = "a {i}"
        [tasks.b]
        parameters.j = { from = 1, to = 4000, step = 1 }
        command = "b {j}"
        after = ["a"]
        """,
    )
    assert "10,000,000 dependencies" in error.message


def test_the_root_is_the_files_folder_wherever_one_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names and patterns are relative to the campaign file, not to the caller."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_text("")
    path = tmp_path / "c.toml"
    path.write_text('[tasks.a]\ncommand = "a {inputs}"\ninputs = [{ files = "data/*.csv" }]\n')
    monkeypatch.chdir("/")
    campaign = read_campaign_toml(path)
    assert campaign.root == tmp_path
    assert lines(campaign) == ["a data/a.csv"]


# Code files, and what a file says.


def test_code_files_are_found_by_name_and_pattern(tmp_path: Path) -> None:
    """Without what Python caches; a name that matches nothing is a slip."""
    for name in ("model.py", "lib/a.py", "lib/deep/b.py", "lib/__pycache__/a.pyc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    head = '[campaign]\ncommand = "true"\ncode = '

    assert read(tmp_path, f'{head}["model.py", "lib/**", "model.py"]').code == (
        "lib/a.py",
        "lib/deep/b.py",
        "model.py",
    )
    assert read(tmp_path, '[campaign]\ncommand = "true"').code == ()
    error = refused(tmp_path, f'{head}["model.py", "modle.py"]')
    assert (error.where, error.message) == (
        "c.toml:3: campaign.code[1]",
        'no file matches "modle.py"',
    )
    assert "without" in refused(tmp_path, f'{head}["../model.py"]').message


def test_remarks_and_the_order_of_keys_say_nothing(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('[campaign]\nname = "a"\ncommand = "true"\n')
    first = statement_digest(path)
    path.write_text('# Of today.\n[campaign]\ncommand = "true"\n\nname = "a"\n')
    assert statement_digest(path) == first
    path.write_text('[campaign]\ncommand = "true"\nname = "b"\n')
    assert statement_digest(path) != first
