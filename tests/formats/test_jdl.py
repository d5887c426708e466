"""Files in the Job Description Language: what each attribute becomes, what is refused where."""

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.thoroughness import examples

from bursar.formats.campaign_file import read_campaign
from bursar.formats.jdl import read_jdl
from bursar.model.campaign import Campaign
from bursar.model.errors import InputError
from bursar.model.matching import Matching
from bursar.model.task import Copy, Exec, File, Redirect, Shell, Task

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "jdl.md"
EXAMPLES = re.findall(r"^```jdl\n(.*?)^```", PAGE.read_text(), re.M | re.S)


def read(folder: Path, text: str) -> Campaign:
    path = folder / "job.jdl"
    path.write_text(text)
    return read_campaign(path)


def task(folder: Path, text: str) -> Task:
    (only,) = read(folder, text).workflow.tasks
    return only


def refused(folder: Path, text: str) -> str:
    with pytest.raises(InputError) as caught:
        read(folder, text)
    assert "\n" not in caught.value.message
    return f"{caught.value.where}: {caught.value.message}".replace(f"{folder}/", "")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: text.split("\n")[0][:30])
def test_every_example_of_the_documentation_reads(example: str, tmp_path: Path) -> None:
    for name in ("reconstruct.sh", "cuts.txt", "merge.jdl"):
        (tmp_path / name).write_text('Executable = "/bin/true";')

    assert read(tmp_path, example).workflow.tasks


def test_a_job_of_the_datagrid_becomes_a_task(tmp_path: Path) -> None:
    """The attributes of the HowTo (Pacini 2001), comments in all three forms included."""
    for name in ("run.sh", "in.txt"):
        (tmp_path / name).touch()
    found = task(
        tmp_path,
        """[
# of JDL
  Executable = "run.sh";          // of C++
  Arguments = "-n 3 'two words'"; /* of C */
  StdInput = "in.txt";
  StdOutput = "std.out";
  StdError = "std.err";
  InputSandbox = {"run.sh", "in.txt"};
  OutputSandbox = {"std.out", "std.err"};
  Environment = {"A=1", "B=x=y"};
  InputData = {"LF:f1", "lfn:/grid/cms/f2"};
  OutputData = {[ OutputFile = "res.root"; LogicalFileName = "lfn:out/res.root" ]};
  Requirements = other.FreeCPUs >= CpuNumber && need > 2;
  Rank = -other.EstimatedTraversalTime;
  CpuNumber = 2;
  RetryCount = 3;
  ShallowRetryCount = 1;
  need = 2 + 2;
  VirtualOrganisation = "cms";
  Alpha = 0.75;
  Beta = 0;
  FuzzyRank = true;
  EstimatedRuntime = "2h";
  WallLimit = 10000;
  Memory = "2 GB";
]""",
    )

    assert found == Task(
        id="job",
        name="run.sh",
        steps=(
            Copy("run.sh", "run.sh", True, False),
            Exec(("chmod", "+x", "./run.sh")),
            Redirect("stdout", "std.out"),
            Redirect("stderr", "std.err"),
            Shell("exec ./run.sh -n 3 'two words' < in.txt"),
            Redirect("stdout", None),
            Redirect("stderr", None),
        ),
        inputs=(File("run.sh"), File("in.txt")),
        outputs=(File("std.out"), File("std.err"), File("res.root")),
        processors=2,
        runtime=7200.0,
        wall_limit=10000.0,
        memory=2_000_000_000,
        environment={"A": "1", "B": "x=y"},
        matching=Matching(
            requirements="other.FreeCPUs >= CpuNumber && need > 2",
            rank="-other.EstimatedTraversalTime",
            alpha=0.75,
            beta=0.0,
            choice="stochastic",
            # CpuNumber because the requirements ask for it, the others because nobody knows them.
            attributes={"CpuNumber": "2", "need": "2 + 2", "VirtualOrganisation": '"cms"'},
        ),
        data=("f1", "grid/cms/f2"),
        registers={"res.root": "out/res.root"},
        retries=3,
    )


def test_the_brackets_may_be_left_out(tmp_path: Path) -> None:
    found = task(tmp_path, 'executable = "/bin/echo"; arguments = "a b";')

    assert found == Task(id="job", name="echo", steps=(Exec(("/bin/echo", "a", "b")),))


def test_sandbox_files_arrive_without_their_folders(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name in ("a.dat", "b.dat"):
        (tmp_path / "data" / name).touch()
    text = f'Executable = "cat"; InputSandbox = {{"data/*.dat", "{tmp_path}/data/a.dat"}};'

    found = task(tmp_path, text)

    assert found.inputs == (File("data/a.dat"), File("data/b.dat"))
    assert found.steps[:2] == (
        Copy("data/a.dat", "a.dat", True, False),
        Copy("data/b.dat", "b.dat", True, False),
    )


def test_output_and_errors_may_go_to_one_file(tmp_path: Path) -> None:
    steps = task(tmp_path, 'Executable = "x"; StdOutput = "o"; StdError = "o";').steps

    assert steps[:2] == (Redirect("stdout", "o"), Redirect("stderr", "o", append=True))


def test_a_choice_and_a_site_are_taken_over(tmp_path: Path) -> None:
    text = 'Executable = "x"; Choice = "softmax"; FuzzyRank = true; SubmitTo = "cnaf";'

    assert task(tmp_path, text).matching == Matching(choice="softmax", site="cnaf")


def test_a_graph_has_dependencies_and_hands_down_attributes(tmp_path: Path) -> None:
    """Outputs of the nodes do not meet: each has a folder of its own."""
    (tmp_path / "b.jdl").write_text('Executable = "echo"; Requirements = other.b;')
    campaign = read(
        tmp_path,
        """Type = "dag"; Requirements = other.all; RetryCount = 2;
        Nodes = [
          a = [ Description = [ Executable = "/bin/echo"; StdOutput = "o"; OutputSandbox = "o" ] ];
          b = [ File = "b.jdl" ];
          c = [ Executable = "/bin/echo"; StdOutput = "o"; OutputSandbox = "o"; RetryCount = 0 ];
        ];
        Dependencies = { { a, { B, c } }, { b, "c" } };""",
    )
    a, b, c = campaign.workflow.tasks

    assert [t.id for t in (a, b, c)] == ["a", "b", "c"]
    assert [t.after for t in (a, b, c)] == [(), ("a",), ("a", "b")]
    assert [t.retries for t in (a, b, c)] == [2, 2, 0]
    assert [t.matching.requirements for t in (a, b, c)] == ["other.all", "other.b", "other.all"]
    assert a.outputs == (File("a/o"),)
    assert a.steps[-1] == Copy("o", "a/o", False, False)
    assert c.outputs == (File("c/o"),)


def test_dependencies_may_stand_among_the_nodes(tmp_path: Path) -> None:
    """As the first release of the European DataGrid's language had them."""
    nodes = '[ a = [ Executable = "x" ]; b = [ Executable = "x" ]; dependencies = { a, b } ]'
    tasks = read(tmp_path, f'Type = "DAG"; Nodes = {nodes};').workflow.tasks

    assert [t.after for t in tasks] == [(), ("a",)]


def test_a_collection_is_jobs_side_by_side(tmp_path: Path) -> None:
    (tmp_path / "b.jdl").write_text('Executable = "echo";')
    text = (
        'Type = "Collection"; Nodes = { [ NodeName = "n"; Executable = "x" ], [ File = "b.jdl" ] };'
    )
    tasks = read(tmp_path, text).workflow.tasks

    assert [(t.id, t.name, t.after) for t in tasks] == [("n", "x", ()), ("node1", "echo", ())]


X = 'Executable = "x"; '


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (X + "\nRequirements = other.a = 3;",
         'job.jdl:2:24: found "=", expected an operator, ";" or the end'),
        (X + "Rank = foo(1);", 'job.jdl:1:26: unknown function "foo"'),
        ("Executable = x;", "job.jdl:1:1: Executable is undefined, expected a value"),
        ("RetryCount = 1;", "job.jdl: Executable is missing, expected the program that runs"),
        ("", "job.jdl: Executable is missing, expected the program that runs"),
        (X + 'RetryCount = "3"',
         'job.jdl:1:19: RetryCount is "3", expected a whole number of at least 0'),
        (X + "CpuNumber = 0",
         "job.jdl:1:19: CpuNumber is 0, expected a whole number of at least 1"),
        (X + "Alpha = 2", "job.jdl:1:19: Alpha is 2, expected a number between 0 and 1"),
        (X + "Beta = 0.0 / 0", None),
        (X + 'Choice = "bst"', None),
        (X + 'FuzzyRank = "yes"', 'job.jdl:1:19: FuzzyRank is "yes", expected true or false'),
        (X + 'Requirements = "other.a"',
         'job.jdl:1:19: Requirements holds "other.a", expected an expression that is true or '
         "false"),
        (X + "Requirements = true && 1",
         "job.jdl:1:19: Requirements holds 1, expected an expression that is true or false"),
        (X + 'Rank = "fast"',
         'job.jdl:1:19: Rank holds "fast", expected an expression that is a number'),
        (X + 'InputSandbox = "/etc/passwd"', None),
        (X + 'InputSandbox = "gsiftp://a/b"', None),
        (X + 'InputSandbox = "missing"', None),
        (X + 'InputSandbox = "*.missing"', None),
        (X + "InputSandbox = {1}", "job.jdl:1:19: InputSandbox holds 1, expected strings"),
        (X + 'OutputSandbox = "../x"',
         'job.jdl:1:19: OutputSandbox holds "../x", expected a file within the job\'s directory'),
        (X + 'StdOutput = "/tmp/x"', None),
        (X + 'StdInput = "in"', 'job.jdl:1:19: StdInput "in" is not in the InputSandbox'),
        (X + "Arguments = \"'\"", None),
        (X + 'Environment = "A"', 'job.jdl:1:19: Environment holds "A", expected "NAME=value"'),
        (X + 'InputData = "guid:1"', None),
        (X + 'InputData = "lfn:../x"',
         'job.jdl:1:19: InputData holds "lfn:../x", which is no logical name'),
        (X + 'OutputData = {[ LogicalFileName = "a" ]}', None),
        (X + 'OutputData = "a"',
         "job.jdl:1:19: OutputData expected a list of ads, each with an OutputFile"),
        (X + 'EstimatedRuntime = "long"', None),
        (X + "WallLimit = 0", "job.jdl:1:19: WallLimit must be positive, got 0"),
        (X + 'JobType = "Interactive"', None),
        (X + 'Prologue = "x"', "job.jdl:1:19: Prologue is not carried out here"),
        (X + 'executable = "y"', 'job.jdl:1:19: "executable" is already defined in line 1'),
        ('Type = "foo";', 'job.jdl:1:1: Type is "foo", expected one of Job, Collection, DAG'),
        ('Type = "dag";', "job.jdl: Nodes are missing, expected the jobs"),
        ('Type = "collection"; Nodes = {};', "job.jdl:1:22: Nodes are empty, expected the jobs"),
        ('Type = "collection"; Nodes = {\n[ Executable = "e"; RetryCount = -1 ] };',
         "job.jdl:2:21: RetryCount is -1, expected a whole number of at least 0"),
        ('Type = "dag"; Nodes = [ a = [ Executable = "x" ] ]; Dependencies = {{ a, z }};',
         'job.jdl:1:53: Dependencies name "z", which is no node'),
        ('Type = "dag"; Nodes = [ a = [ Executable = "x" ] ]; Dependencies = {{ a }};', None),
        ('Type = "dag"; Nodes = [ a = [ Executable = "x" ] ]; Dependencies = {{ a, a }};',
         "job.jdl: the tasks depend on each other in a cycle: a -> a"),
        ('Type = "dag"; Nodes = [ a = [ File = "missing.jdl" ] ];', None),
        ('Type = "dag"; Nodes = [ a = [ File = "job.jdl" ] ];', None),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_at_its_place(
    text: str, expected: str | None, tmp_path: Path
) -> None:
    """File, line and column, and one line that says what was found and expected."""
    found = refused(tmp_path, text)

    assert found.startswith(("job.jdl", "missing.jdl"))
    if expected is not None:
        assert found == expected


WORDS = """
Executable InputSandbox OutputSandbox Requirements Rank Type Nodes Dependencies Arguments StdInput
StdOutput Environment InputData OutputData RetryCount CpuNumber Description File NodeName
= = = = ; ; ; ; [ ] { } , "x" "dag" "collection" "A=1" "lfn:a" 1 -1 0.5 true undefined error a
other.a && == ( ) "job.jdl" "../x" "*"
"""
words = st.lists(st.sampled_from(WORDS.split()), max_size=25).map(" ".join)


@settings(
    max_examples=examples(250),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    text=st.one_of(words, words.map(lambda rest: 'Executable = "x"; ' + rest), st.text(max_size=40))
)
def test_any_text_is_a_campaign_or_one_of_our_errors(text: str, tmp_path: Path) -> None:
    path = tmp_path / "job.jdl"
    path.write_bytes(text.encode(errors="surrogatepass"))
    try:
        found = read_jdl(path).workflow.tasks
    except InputError as error:
        found = ()
        refusal = error
    if not found:
        assert refusal.where.startswith(str(tmp_path))
