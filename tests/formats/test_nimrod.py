"""Nimrod plan files: what each statement means, and what is refused where."""

import math
import re
import time
from pathlib import Path

import pytest

from bursar.formats.nimrod import read_plan_file
from bursar.model.campaign import Campaign
from bursar.model.errors import InputError
from bursar.model.task import Copy, Exec, OnError, Redirect, Shell, Step, Substitute, Task, Value

MAIN = "task main\n  exec true\nendtask\n"


def _read(folder: Path, text: str) -> Campaign:
    path = folder / "sweep.pln"
    path.write_text(text)
    return read_plan_file(path)


def _values(folder: Path, parameter: str) -> list[Value]:
    """The values that one parameter takes, job by job."""
    tasks = _read(folder, f"parameter p {parameter}\n{MAIN}").workflow.tasks
    return [task.parameters["p"] for task in tasks]


def _steps(folder: Path, commands: str, parameters: str = "") -> tuple[Step, ...]:
    """Steps of the first job of a plan with these commands."""
    plan = f"{parameters}\ntask main\n{commands}\nendtask\n"
    return _read(folder, plan).workflow.tasks[0].steps


# ---- parameters ----


@pytest.mark.parametrize(
    ("parameter", "values"),
    [
        ("integer range from 1 to 5 step 2", [1, 3, 5]),
        ("integer range from 1 to 6 step 2", [1, 3, 5]),
        ("integer range from -2 to 1", [-2, -1, 0, 1]),  # the step is 1 when left out
        ("integer range from 3 to 3 step 1", [3]),
        ("integer range from 1 to 10 points 4", [1, 4, 7, 10]),
        ("integer range from 1 to 10 points 1", [1]),
        # Ends that binary fractions would miss: 1.5 + 0.2 is less than 1.7 there.
        ("float range from 1.5 to 1.7 step 0.2", [1.5, 1.7]),
        ("float range from 5.0E2 to 5.2E2 step 0.2E2", [500.0, 520.0]),
        ("float range from 0 to 0.3 step .1", [0.0, 0.1, 0.2, 0.3]),
        ("float range from 0 to 1 points 3", [0.0, 0.5, 1.0]),
        ("integer 7", [7]),
        ("integer default 7", [7]),
        ("float -7.5", [-7.5]),
        ('text "one value"', ["one value"]),
        ('text default "C:\\\\dir \\"x\\""', ['C:\\dir "x"']),
        ("text select anyof red green", ["red", "green"]),
        ('text select anyof "a b" "c"', ["a b", "c"]),
        ('integer select anyof 3 1 "2"', [3, 1, 2]),
        ("integer select anyof 3 1 2 default 1 2", [1, 2]),
        ("text select oneof red green blue", ["red"]),
        ("text select oneof red green blue default blue", ["blue"]),
        ("integer compute 2 + 3 * 4", [14]),
    ],
)
def test_a_parameter_takes_its_values(tmp_path: Path, parameter: str, values: list[Value]) -> None:
    """Both ends of a range belong to it; values keep the type of the parameter."""
    found = _values(tmp_path, parameter)

    assert found == values
    assert [type(value) for value in found] == [type(value) for value in values]


def test_the_number_of_range_values_is_exact(tmp_path: Path) -> None:
    """-45 to 45 by 2.5 is 37 values, 0 to 100 by 0.1 is 1001; neither end is lost."""
    assert len(_values(tmp_path, "float range from -45 to 45 step 2.5")) == 37
    values = _values(tmp_path, "float range from 0 to 100 step 0.1")
    assert len(values) == 1001
    assert values[3] == 0.3
    assert values[-1] == 100.0


def test_random_values_are_the_same_at_every_reading(tmp_path: Path) -> None:
    """A resumed or repeated campaign must mean the same jobs; the seed is the name."""
    values = _values(tmp_path, "float random from 1 to 2 points 1000")
    assert values == _values(tmp_path, "float random from 1 to 2 points 1000")
    numbers = [float(value) for value in values]
    assert all(1 <= x <= 2 for x in numbers)
    # The mean of 1000 uniform draws is 1.5 with a standard error of
    # 1 / sqrt(12 * 1000) = 0.0091; the seed is fixed, so this cannot flicker.
    assert abs(sum(numbers) / 1000 - 1.5) < 4 * 0.0091

    assert set(_values(tmp_path, "integer random from 1 to 3 points 100")) == {1, 2, 3}
    assert len(_values(tmp_path, "float random from 1 to 2")) == 1


def test_two_random_parameters_differ(tmp_path: Path) -> None:
    """Each draws from its own stream."""
    text = "parameter a float random from 0 to 1\nparameter b float random from 0 to 1\n" + MAIN
    point = _read(tmp_path, text).workflow.tasks[0].parameters
    assert point["a"] != point["b"]


def test_files_are_found_beside_the_plan(tmp_path: Path) -> None:
    """A pattern becomes the names it matches, sorted, folders kept."""
    (tmp_path / "in").mkdir()
    for name in ("in/b.xml", "in/a.xml", "in/c.txt", "other.dat"):
        (tmp_path / name).touch()

    found = _values(tmp_path, 'files select anyof "in/*.xml" other.dat')
    assert found == ["in/a.xml", "in/b.xml", "other.dat"]


def test_jobs_are_the_cross_product_the_last_parameter_fastest(tmp_path: Path) -> None:
    """The order of jobs, hence their index, follows the file."""
    text = (
        'parameter a label "the first" integer range from 1 to 2;\nparameter t text x y\n'.replace(
            "x y", '"x"'
        )
        + "parameter b float select anyof 0.5 1.5 ; // old plans end with a semicolon\n"
        + "task main\n  exec prog $a ${t} ${b} $jobindex ${nimrod_jobindex} $jobname\nendtask"
    )
    tasks = _read(tmp_path, text).workflow.tasks

    assert [tuple(task.parameters.values()) for task in tasks] == [
        (1, "x", 0.5),
        (1, "x", 1.5),
        (2, "x", 0.5),
        (2, "x", 1.5),
    ]
    assert tasks[2].id == "job3"
    assert tasks[2].steps == (Exec(("prog", "2", "x", "0.5", "3", "3", "job3")),)


def test_a_plan_without_parameters_is_one_job(tmp_path: Path) -> None:
    """The empty product."""
    (task,) = _read(tmp_path, MAIN).workflow.tasks
    assert task == Task(id="job1", name="main", steps=(Exec(("true",)),))


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 2 * 3", 7.0),
        ("(1 + 2) * 3", 9.0),
        ("2 ** 3 ** 2", 512.0),  # from the right, as in mathematics
        ("2 ^ -1", 0.5),
        ("-2 ** 2", -4.0),
        ("7 % 4 - 10 / 4", 0.5),
        ("$a * 10 + ${b} + a", 3 * 10 + 0.5 + 3),
        ("sqrt(16) + max(1, 2, a) + pow(2, 3)", 15.0),
        ("floor(2.7) + ceil(2.2) + round(2.5) + int(-2.7) + abs(-1)", 2 + 3 + 2 - 2 + 1),
        ("exp(log(5))", 5.0),
        ("sin(0) + cos(0) + tan(0) + log10(100)", 3.0),
        ("+.5e1 + 1.", 6.0),
    ],
)
def test_compute_is_arithmetic(tmp_path: Path, expression: str, value: float) -> None:
    """With the usual precedence, functions and the parameters before it."""
    text = f"parameter a integer 3\nparameter b float 0.5\nparameter p float compute {expression}\n"
    (task,) = _read(tmp_path, text + MAIN).workflow.tasks
    result = task.parameters["p"]
    assert isinstance(result, float)
    assert math.isclose(result, value)


def test_compute_follows_each_job(tmp_path: Path) -> None:
    """A computed parameter adds no jobs, and a later one may use it."""
    text = (
        "parameter x integer range from 1 to 3\n"
        "parameter square integer compute $x * $x // in each job its own\n"
        "parameter label text compute square + 1;\n"
    )
    tasks = _read(tmp_path, text + MAIN).workflow.tasks
    assert [dict(task.parameters) for task in tasks] == [
        {"x": 1, "square": 1, "label": "2"},
        {"x": 2, "square": 4, "label": "5"},
        {"x": 3, "square": 9, "label": "10"},
    ]


# ---- commands ----


@pytest.mark.parametrize(
    ("command", "step"),
    [
        ("copy in node:out", Copy("in", "out", True, False)),
        ("copy root:in node:sub/out", Copy("in", "sub/out", True, False)),
        ("copy node:out root:res/out.$p", Copy("out", "res/out.5", False, True)),
        ("copy node:out out.${p}", Copy("out", "out.5", False, True)),
        ('copy root:"a b" node:"c"d', Copy("a b", "cd", True, False)),
        ("copy node:a node:b", Copy("a", "b", False, False)),
        # Into a folder: the name is kept.
        ("copy root:dir/in node:.", Copy("dir/in", "in", True, False)),
        ("copy node:out root:.", Copy("out", "out", False, True)),
        ("copy node:out root:res/", Copy("out", "res/out", False, True)),
        ("copy root:data node:.", Copy("data", "data", True, False)),
        ("copy node:. root:all", Copy(".", "all", False, True)),
        ('exec prog "a b" c"d e"f', Exec(("prog", "a b", "cd ef"))),
        ("exec prog -p=$p ${p}x $p.txt", Exec(("prog", "-p=5", "5x", "5.txt"))),
        (r'exec prog "\$p \\ \" \n \x41\101 \."', Exec(("prog", '$p \\ " \n AA \\.'))),
        ("exec prog a;b > c", Exec(("prog", "a;b", ">", "c"))),
        ("exec ls dir/* http://x a#b", Exec(("ls", "dir/*", "http://x", "a#b"))),
        ("exec echo copy to endtask", Exec(("echo", "copy", "to", "endtask"))),
        ("node:exec prog", Exec(("prog",))),
        ("lexec /bin/prog name x", Exec(("/bin/prog", "x"))),
        ("lpexec prog name x", Exec(("prog", "x"))),
        ('shexec "echo $p > out; echo \\"q\\""', Shell('echo 5 > out; echo "q"')),
        (
            "shexec echo $p   > out; awk '{print \"x\"}'",
            Shell("echo 5   > out; awk '{print \"x\"}'"),
        ),
        (r'shexec "echo \$HOME ${p}"', Shell("echo $HOME 5")),  # the shell's own variable
        ("shexec echo $HOME ${p}", Shell("echo $HOME 5")),
        ("shexec \"awk '{print \\$1}'\"", Shell("awk '{print $1}'")),
        ("shexec awk '{print $NF}' in.$p", Shell("awk '{print $NF}' in.5")),
        ('shexec "a" "b c"', Shell('"a" "b c"')),
        ("execute /bin/uname -a >> output", Shell("/bin/uname -a >> output")),
        ("node:execute run $p", Shell("run 5")),
        ("execute:node run", Shell("run")),
        ("redirect stdout to out.$p", Redirect("stdout", "out.5")),
        ("redirect stderr append to err", Redirect("stderr", "err", append=True)),
        ("redirect stdout off", Redirect("stdout", None)),
        ("onerror ignore", OnError(ignore=True)),
        ("onerror fail", OnError(ignore=False)),
    ],
)
def test_a_command_becomes_a_step(tmp_path: Path, command: str, step: Step) -> None:
    """Words, strings, prefixes and parameters, as written."""
    assert _steps(tmp_path, command, "parameter p integer 5") == (step,)


def test_substitute_knows_every_parameter(tmp_path: Path) -> None:
    """The template may use any of them, and the job's own names."""
    (step,) = _steps(tmp_path, "substitute in.skel node:in.$p", "parameter p float 0.50")
    assert step == Substitute(
        "in.skel",
        "in.0.5",
        {"p": "0.5", "jobindex": "1", "nimrod_jobindex": "1", "jobname": "job1"},
    )


def test_comments_and_continued_lines(tmp_path: Path) -> None:
    """A comment begins where a word would; a backslash ends no command."""
    steps = _steps(
        tmp_path,
        """
        // exec no
        # exec no
        exec a b \\
            c /* d
            e */ f   // g
        /* exec no
           exec no */
        shexec ./run.sh \\
            $p /*2*/ \\
            "x y" \\
            >>out  # h
        shexec "one \\
two"
        """,
        "parameter p integer 5",
    )
    assert steps == (
        Exec(("a", "b", "c", "f")),
        Shell('./run.sh 5 "x y" >>out'),
        Shell("one two"),
    )


def test_line_ends_of_other_systems_read_alike(tmp_path: Path) -> None:
    """Plans come from everywhere, some with a byte order mark."""
    path = tmp_path / "sweep.pln"
    text = "parameter p integer range from 1 to 3\n" + MAIN
    for data in (text, text.replace("\n", "\r\n"), text.replace("\n", "\r"), "\ufeff" + text):
        path.write_bytes(data.encode())
        assert len(read_plan_file(path).workflow.tasks) == 3


# ---- tasks ----


def test_blocks_become_tasks_around_the_jobs(tmp_path: Path) -> None:
    """rootstart before all jobs, rootfinish after all; node blocks within each job."""
    text = """
    parameter n integer range from 1 to 2
    parameter tag text "t"
    task rootfinish
        exec gather $tag
    endtask
    task nodefinish
        exec sweep
    endtask
    task main
        onerror ignore
        redirect stdout append to log
        exec main $n
    endtask
    task nodestart
        redirect stderr to err
        exec prepare
    endtask
    task rootstart
        shexec make $tag in ${n}
    endtask
    """
    workflow = _read(tmp_path, text).workflow

    start, one, two, finish = workflow.tasks
    assert [task.id for task in workflow.tasks] == ["rootstart", "job1", "job2", "rootfinish"]
    assert workflow.parents == ((), (0,), (0,), (1, 2))
    # n has two values, so the root block has none: it is left to the shell.
    assert start.steps == (Shell("make t in ${n}"),)
    assert finish.steps == (Exec(("gather", "t")),)
    assert one.steps == (
        Redirect("stderr", "err"),
        Exec(("prepare",)),
        Redirect("stderr", None),  # what a block redirects or ignores ends with it
        OnError(ignore=True),
        Redirect("stdout", "log", append=True),
        Exec(("main", "1")),
        Redirect("stdout", None),
        OnError(ignore=False),
        Exec(("sweep",)),
    )
    assert two.parameters == {"n": 2, "tag": "t"}


def test_empty_blocks_are_allowed(tmp_path: Path) -> None:
    """A root block without commands makes no task."""
    text = "task rootstart\nendtask\ntask main\nendtask\n"
    (task,) = _read(tmp_path, text).workflow.tasks
    assert task.steps == ()


# ---- what is refused ----

BAD = [
    ("", "1:1: ", 'no "task main"'),
    ("parameter p integer 1\n", "2:1: ", 'no "task main"'),
    (
        "parm p integer 1\n",
        "1:1: ",
        'found "parm", expected output, parameter, rank, requirements, result, task or the end',
    ),
    ("parameter\n", "1:10: ", "found the end of the line, expected a name"),
    ("parameter 1x integer 1\n", "1:11: ", 'found "1x", expected a name'),
    ("parameter p\n", "1:12: ", "expected files, float, integer, label or text"),
    ("parameter p label name integer 1\n", "1:19: ", 'found "name", expected a string'),
    ("parameter p int 1\n", "1:13: ", 'found "int", expected'),
    ("parameter p integer\n", "1:20: ", "found the end of the line, expected"),
    ("parameter p integer range 1 to 5\n", "1:27: ", 'found "1", expected from'),
    ("parameter p integer range from 1 to\n", "1:36: ", "expected a number"),
    ("parameter p integer range from a to 5\n", "1:32: ", 'found "a", expected a number'),
    ("parameter p integer range from 1 to 5 step 0\n", "1:44: ", "must be positive"),
    ("parameter p integer range from 1 to 5 step -1\n", "1:44: ", "must be positive"),
    ("parameter p integer range from 1 to 5 step 0.5\n", "1:44: ", "integer parameter is whole"),
    ("parameter p integer range from 1.5 to 5\n", "1:32: ", "1.5 is not an integer"),
    ("parameter p integer range from 1 to 4 points 3\n", "1:32: ", "2.5 is not an integer"),
    ("parameter p integer range from 1 to 5 points 0\n", "1:46: ", "positive whole number"),
    ("parameter p integer range from 5 to 1\n", "1:37: ", "an end that is not less"),
    ("parameter p float range from 0 to 1e30\n", "1:35: ", "1e30 is out of range"),
    ("parameter p float range from 0 to 1 step 1e-9\n", "1:30: ", "more than 10,000,000 values"),
    ("parameter p float random from 0 to 1 points 1e9\n", "1:45: ", "at most 10,000,000"),
    ("parameter p float random from 1 to 0\n", "1:36: ", "an end that is not less"),
    ("parameter p text range from 1 to 5\n", "1:11: ", "a text parameter has no range"),
    ("parameter p integer select 1 2\n", "1:28: ", 'found "1", expected anyof or oneof'),
    ("parameter p integer select anyof 1 x\n", "1:36: ", "found x, expected a number"),
    ("parameter p text select anyof a default b\n", "1:41: ", "is not among the values"),
    ("parameter p text select oneof a b default a b\n", "1:45: ", "takes one default"),
    ('parameter p text "open\n', "1:18: ", "the string is not closed"),
    ('parameter p text "$q"\n', "1:18: ", "a value cannot contain another parameter"),
    ('parameter p files "none.*"\n', "1:19: ", 'no file matches "none.*"'),
    ("parameter p integer 1\nparameter p integer 1\n", "2:11: ", "already defined in line 1"),
    ("parameter jobindex integer 1\n", "1:11: ", "choose another name"),
    ("parameter p integer compute 1 +\n", "1:32: ", "found the end, expected"),
    ("parameter p integer compute 1 $ 2\n", "1:31: ", 'found "$"'),
    ("parameter p integer compute q\n", "1:28: ", 'unknown parameter "q"'),
    ("parameter p integer compute p\n", "1:28: ", 'unknown parameter "p"'),
    ("parameter p integer compute eval(1)\n", "1:28: ", 'unknown function "eval"'),
    ("parameter p integer compute sqrt(1, 2)\n", "1:28: ", "takes 1 argument(s), got 2"),
    ("parameter p integer compute 1 / 0\n", "1:11: ", "cannot be computed: division by zero"),
    ("parameter p float compute sqrt(-1)\n", "1:11: ", "cannot be computed"),
    ("parameter p float compute (-8) ^ 0.5\n", "1:11: ", "cannot be computed"),
    ("parameter p float compute 9 ** 9 ** 9 ** 9\n", "1:11: ", "out of range"),
    ("parameter p float compute 10.0 ** 400\n", "1:11: ", "cannot be computed"),
    ("parameter p integer compute 1 / 2\n", "1:11: ", "0.5 is not an integer"),
    ('parameter t text "a"\nparameter p float compute t\n', "2:11: ", 'is the text "a"'),
    ("variable x index 0 list 1 2\n", "1:1: ", "this is a run file"),
    ("task main\n", "2:1: ", "expected copy, endtask, "),
    ("task\n", "1:5: ", "expected main, "),
    ("task mai\nendtask\n", "1:6: ", 'found "mai", expected main'),
    ("task main exec x\nendtask\n", "1:11: ", 'found "exec", expected the end of the line'),
    ("task main\n  cpy a b\nendtask\n", "2:3: ", 'found "cpy", expected'),
    ("task main\n  copy a\nendtask\n", "2:9: ", "found the end of the line, expected an argument"),
    ("task main\n  copy a b c\nendtask\n", "2:12: ", 'found "c", expected the end of the line'),
    ("task main\n  copy '$x' b\nendtask\n", "2:8: ", "single quotes do not quote"),
    ("task main\n  copy node:a /b\nendtask\n", "2:15: ", "is outside the run's files"),
    ("task main\n  copy node:a root:../b\nendtask\n", "2:15: ", "is outside the run's files"),
    ("task main\n  exec\nendtask\n", "2:7: ", "expected an argument"),
    ("task main\n  exec a $x\nendtask\n", "2:10: ", 'unknown parameter "x"'),
    ('task main\n  exec a "b\n  c"\nendtask\n', "2:10: ", "the string is not closed"),
    ('task main\n  exec a "\\0"\nendtask\n', "2:10: ", "no character that a text may hold"),
    ("task main\n  onerror stop\nendtask\n", "2:11: ", "expected fail or ignore"),
    ("task main\n  redirect stdin to x\nendtask\n", "2:12: ", "expected stderr or stdout"),
    ("task main\n  redirect stdout x\nendtask\n", "2:19: ", "expected append, off or to"),
    ('task main\n  shexec "a $x"\nendtask\n', "2:10: ", 'unknown parameter "x"'),
    ("output x\nresult x\n" + MAIN, "2:8: ", 'output "x" is already declared in line 1'),
    ("parameter x integer 1\noutput x\n" + MAIN, "2:8: ", '"x" is a parameter'),
    ("output x\ntask main\n  slurp json f y:/a\nendtask\n", "3:16: ", 'unknown output "y"'),
    ("output x\ntask main\n  slurp json f x:a\nendtask\n", "3:16: ", "expected a JSON Pointer"),
    ("output x\ntask main\n  slurp json f x\nendtask\n", "3:16: ", "expected NAME:PLACE"),
    ("output x\ntask main\n  slurp json f\nendtask\n", "3:9: ", "expected outputs, such as"),
    ("output x\ntask main\n  slurp csv f x:a\nendtask\n", "3:15: ", "number of a field"),
    ("output x\ntask main\n  slurp xml f x:a[\nendtask\n", "3:15: ", "is no path"),
    ("output x\ntask main\n  slurp regex f (\nendtask\n", "3:17: ", "is no regular expression"),
    ("output x\ntask main\n  slurp regex f a b\nendtask\n", "3:19: ", "expected one regular"),
    ("output x\ntask main\n  slurp regex f ab\nendtask\n", "3:17: ", "a named group"),
    ("output x\ntask main\n  slurp yaml f x:a\nendtask\n", "3:9: ", "expected csv, hcsv, json"),
    ("output x\n" + MAIN + "task rootfinish\n slurp json f x:/a\nendtask\n", "6:2: ", "in rootf"),
    ("output task\ntask main\n  slurp csv f task:0\nendtask\n", "3:15: ", "is a column of every"),
    ("task main\n  root:execute x\nendtask\n", "2:3: ", "runs at the root"),
    ("task main\n  substitute root:a b\nendtask\n", "2:14: ", "works on the node"),
    ("task main\n  /* never closed\nendtask\n", "2:3: ", 'the comment "/*" is not closed'),
    (MAIN + MAIN, "4:6: ", 'task "main" is already defined'),
    (
        "parameter p integer 1\nparameter q integer range from 1 to 2\n"
        "task rootstart\n  exec a $p $q\nendtask\n" + MAIN,
        "4:13: ",
        '"q" has no value in rootstart',
    ),
]


@pytest.mark.parametrize(("text", "place", "message"), BAD, ids=[f"{b[0]!r}" for b in BAD])
def test_a_bad_plan_is_refused_where_it_is_bad(
    tmp_path: Path, text: str, place: str, message: str
) -> None:
    """One line: file, line and column, what was found, what was expected."""
    if "task" not in text and message != 'no "task main"':
        text += MAIN
    with pytest.raises(InputError) as caught:
        _read(tmp_path, text)
    line = str(caught.value).partition("\nhint: ")[0]
    assert line.startswith(f"{tmp_path / 'sweep.pln'}:{place}")
    assert message in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("param p integer 1\n", 'did you mean "parameter"?'),
        ("parameter p intger 1\n", 'did you mean "integer"?'),
        ("task main\n  redirct stdout off\nendtask\n", 'did you mean "redirect"?'),
        (
            "parameter speed integer 1\ntask main\n  exec a ${sped}\nendtask\n",
            'did you mean "speed"?',
        ),
        ("parameter p integer compute sqr(4)\n" + MAIN, 'did you mean "sqrt"?'),
    ],
)
def test_a_slip_of_the_pen_gets_a_hint(tmp_path: Path, text: str, hint: str) -> None:
    """The nearest word that could stand there."""
    with pytest.raises(InputError) as caught:
        _read(tmp_path, text)
    assert caught.value.hint == hint


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    """Binary files are named with the line that gave them away."""
    path = tmp_path / "sweep.pln"
    path.write_bytes(b"task main\n\xff\xfe")
    with pytest.raises(InputError, match=r"sweep\.pln:2: is not a text in UTF-8"):
        read_plan_file(path)
    path.write_bytes(b"task main\n\0")
    with pytest.raises(InputError, match=r"sweep\.pln:2:1: holds a NUL"):
        read_plan_file(path)
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_plan_file(tmp_path / "absent.pln")


def test_too_many_jobs_are_refused_before_they_are_made(tmp_path: Path) -> None:
    """Twenty million jobs must cost a message, not the memory."""
    text = "".join(f"parameter p{i} integer range from 1 to 10\n" for i in range(7))
    begin = time.perf_counter()
    with pytest.raises(InputError, match=r"has 20,000,000 jobs, at most 10,000,000"):
        _read(tmp_path, text + "parameter q integer range from 1 to 2\n" + MAIN)
    assert time.perf_counter() - begin < 1


@pytest.mark.ci
def test_a_large_cross_product_is_read_in_seconds(tmp_path: Path) -> None:
    """A hundred thousand jobs; 2 s when measured, most of it in making steps."""
    text = (
        "parameter a integer range from 1 to 1000\n"
        "parameter b float range from 0 to 9.9 step 0.1\n"
        "task main\n  copy root:in node:.\n  exec run $a ${b}\n  copy node:o o.$jobindex\nendtask\n"
    )
    begin = time.perf_counter()
    tasks = _read(tmp_path, text).workflow.tasks
    assert len(tasks) == 100_000
    assert tasks[-1].steps[1] == Exec(("run", "1000", "9.9"))
    assert time.perf_counter() - begin < 20


# ---- plans that other people wrote ----


def test_the_portal_example_is_500_jobs(data: Path) -> None:
    """As its manual says; old syntax."""
    campaign = read_plan_file(data / "nimrod" / "portal-example-1.pln")

    assert len(campaign.workflow.tasks) == 500
    assert campaign.workflow.tasks[499].steps == (
        Copy("inputfile", "output", True, False),
        Shell("/bin/uname -a >> output"),
        Copy("output", "output.500", False, True),
    )


def test_the_embedded_sweep_is_12_jobs(data: Path) -> None:
    """3 x 2 x 2: both ends of the float ranges count."""
    tasks = read_plan_file(data / "nimrod" / "embedded-sweep.pln").workflow.tasks

    assert len(tasks) == 12
    assert Exec(("echo", "3,520,1.7")) in tasks[11].steps


def test_the_embedded_escape_is_5_jobs(data: Path) -> None:
    """Escaped quotes within a shell line."""
    tasks = read_plan_file(data / "nimrod" / "embedded-escape.pln").workflow.tasks

    assert len(tasks) == 5
    assert (
        Shell("R CMD BATCH --no-save --no-restore '--args i=\"5\"' Rscript Rout") in tasks[4].steps
    )


def _with_files(data: Path, name: str, folder: Path, *files: str) -> Path:
    """The plan in a folder where its patterns match something."""
    for file in files:
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).touch()
    path = folder / name
    path.write_bytes((data / "nimrod" / name).read_bytes())
    return path


def test_the_plans_over_files(data: Path, tmp_path: Path) -> None:
    """
    Job counts follow from the files that are there.

    aero: 3 files x 37 angles x 4 winglets x 12 speeds x 1 random = 5328.
    """
    aircraft = ("A300.dat", "A320.dat", "737-8.dat")
    for name in ("aero-onlyvars.pln", "test2.pln"):
        path = _with_files(data, name, tmp_path, *aircraft)
        assert len(read_plan_file(path).workflow.tasks) == 5328

    path = _with_files(data, "embedded-files.pln", tmp_path, "INPUTS/1.xml", "INPUTS/2.xml")
    one, two = read_plan_file(path).workflow.tasks
    assert one.steps[0] == OnError(ignore=False)
    assert Copy("INPUTS/2.xml", "INPUTS/2.xml", True, False) in two.steps
    assert Exec(("CODE/myprogram.exe", "-i", "INPUTS/2.xml", "-o", "OUTPUTS/out.dat")) in two.steps

    with pytest.raises(InputError, match=r'aero-onlyvars\.pln:1:45: no file matches "A3'):
        read_plan_file(data / "nimrod" / "aero-onlyvars.pln")


def test_unquoted_shell_lines_with_comments(data: Path, tmp_path: Path) -> None:
    """test2.pln continues lines, comments within commands and names what the shell knows."""
    path = _with_files(data, "test2.pln", tmp_path, "A300.dat", "737-8.dat")
    task = read_plan_file(path).workflow.tasks[0]
    lines = [step.line for step in task.steps if isinstance(step, Shell)]

    turbulence = task.parameters["turbulence"]
    assert lines == [
        f"./run_wing_test.sh A300.dat none -45 \t\t50 {turbulence} >> output.1",
        f"./run_wing_test.sh A300.dat none -45 50 {turbulence} >> output.1",
        "./script.sh ${var}>> out.txt",
        './script.sh ${var} 2 "asdfasd" >>out.txt',
        "./script.sh ${var} >> out.txt",
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("test_badtask.pln", ':3:6: found "mai", expected main'),
        ("test_truncparam.pln", ':2:1: found "param", expected output, parameter'),
    ],
)
def test_the_invalid_plans_are_refused_with_the_reason(data: Path, name: str, message: str) -> None:
    """Both are invalid by the index of the data."""
    with pytest.raises(InputError) as caught:
        read_plan_file(data / "nimrod" / name)
    assert message in str(caught.value)


def _documented(language: str) -> list[str]:
    """The blocks of the reference page in a language."""
    page = Path(__file__).parents[2] / "docs" / "reference" / "nimrod.md"
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def test_the_documented_plans_read(tmp_path: Path) -> None:
    """The reference page shows no plan that would be refused."""
    (tmp_path / "INPUTS").mkdir()
    for name in ("a.xml", "b.xml"):
        (tmp_path / "INPUTS" / name).touch()
    plans = _documented("nimrod")
    counts = [len(_read(tmp_path, plan).workflow.tasks) for plan in plans]
    # The first is 3 x 2 x 2 jobs and one task that gathers; the old one, 10 jobs.
    assert counts[:2] == [13, 10]


def test_the_documented_parameters_have_the_stated_values(tmp_path: Path) -> None:
    """Each line of the table of domains, with the values beside it."""
    (page,) = _documented("parameters")
    for line in page.splitlines():
        parameter, _, stated = line.partition(" // ")
        values = _values(tmp_path, parameter.removeprefix("parameter p "))
        assert ", ".join(map(str, values)) == stated


def test_the_documented_error_is_the_real_one(tmp_path: Path) -> None:
    """Line, column, words and hint, letter by letter."""
    ((plan, shown),) = zip(_documented("broken"), _documented("text"), strict=True)
    with pytest.raises(InputError) as caught:
        _read(tmp_path, plan)
    assert str(caught.value).replace(f"{tmp_path}/", "") == shown.rstrip("\n")


def test_the_epidemic_example_reads() -> None:
    """12 x 3 x 2 jobs and one that gathers."""
    path = Path(__file__).parents[2] / "examples" / "epidemic" / "epidemic.pln"
    tasks = read_plan_file(path).workflow.tasks

    assert len(tasks) == 12 * 3 * 2 + 1
    assert tasks[-1].id == "rootfinish"
    assert len(tasks[-1].after) == 72


# ---- results ----

SLURPS = r"""
parameter p integer range from 1 to 2
output a
output b
result c
task main
    /* Whoever fills an output last has it. */
    slurp csv early.csv a:0
    slurp json results.json a:/results/val1 b:"/results/val 2"
    slurp regex log.txt ^(?P<c>\d+),
endtask
"""


def test_slurp_makes_a_column_of_each_output(tmp_path: Path) -> None:
    """In the order in which outputs are declared; files are kept until the table is asked for."""
    campaign = _read(tmp_path, SLURPS)

    assert [(c.name, c.form, c.where, c.source) for c in campaign.results] == [
        ("a", "json", "/results/val1", "slurp/{id}/9"),
        ("b", "json", "/results/val 2", "slurp/{id}/9"),
        ("c", "regex", r"^(?P<c>\d+),", "slurp/{id}/10"),
    ]
    assert campaign.workflow.tasks[1].steps[0] == Copy(
        "early.csv", "slurp/job2/8", source_at_root=False, target_at_root=True
    )


def test_a_file_with_titles_fills_all_outputs_or_those_named(tmp_path: Path) -> None:
    """An expression may stand in double quotes, with C's escapes."""
    plan = "output x\noutput y\ntask main\n  slurp hcsv f\n  slurp hcsv g.tsv y:why\nendtask\n"
    x, y = _read(tmp_path, plan).results
    assert (x.where, x.source, x.separator) == ("x", "slurp/{id}/4", ",")
    assert (y.where, y.source, y.separator) == ("why", "slurp/{id}/5", "\t")
    quoted = 'output x\ntask main\n  slurp regex f "^a (?P<x>\\\\d+)"\nendtask\n'
    assert _read(tmp_path, quoted).results[0].where == r"^a (?P<x>\d+)"


def test_outputs_without_slurp_are_no_columns(tmp_path: Path) -> None:
    """As older plans declare results."""
    assert _read(tmp_path, f"result obj1\nresult obj2;\n{MAIN}").results == ()


def test_names_left_to_the_shell_are_remarked_on(tmp_path: Path) -> None:
    """Each once, in lines without quotes only, as the old dialect has them."""
    lines = "  shexec echo $p $HOME $NF\n  execute ls $HOME\n"
    plan = f"parameter p integer 1\ntask main\n{lines}endtask\n"
    remarks = [one.replace(f"{tmp_path}/", "") for one in _read(tmp_path, plan).remarks]
    assert remarks == [
        'sweep.pln:3:18: "HOME" is no parameter and is left to the shell',
        'sweep.pln:3:24: "NF" is no parameter and is left to the shell',
    ]
