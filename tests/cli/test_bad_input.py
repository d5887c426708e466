"""
Bad input gets one clear line: what, where, and what was expected.

Every row is run as its user would, by the installed command. Each must end
with status 2 and a line that names the place, show no traceback, and leave
the folder as it was.
"""
# ruff: noqa: E501 - a row of the table is one line

import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.forked import run_forked

GOOD_TOML = """\
[campaign]
name = "good"
[tasks.a]
command = "true"
runtime = 1
"""
GOOD_PLAN = """\
parameter x integer range from 1 to 2 step 1
task main
  exec echo $x
endtask
"""
GOOD_SITES = """\
[site.here]
kind = "local"
processors = 2
unit_price = 0.01
"""
WF = """\
{"name": "w", "schemaVersion": "1.5", "workflow": {"specification": {"tasks": [
 {"name": "a", "id": "a", "parents": %s, "children": %s}%s]},
 "execution": {"makespanInSeconds": 1, "executedAt": "2020-01-01T00:00:00Z", "tasks": [
 {"id": "a", "runtimeInSeconds": %s}]}}}
"""


@dataclass(frozen=True)
class Case:
    """One wrong thing: files to write, words of the command, words of the answer."""

    name: str
    argv: tuple[str, ...]
    expect: tuple[str, ...]
    files: dict[str, str | bytes] = field(default_factory=dict)


def toml(name: str, text: str, *expect: str) -> Case:
    """A campaign file that is wrong."""
    return Case(f"toml: {name}", ("plan", "c.toml"), ("c.toml", *expect), {"c.toml": text})


def pln(name: str, text: str, *expect: str) -> Case:
    """A plan file that is wrong."""
    return Case(f"plan file: {name}", ("plan", "p.pln"), ("p.pln", *expect), {"p.pln": text})


def sites(name: str, text: str, *expect: str) -> Case:
    """A sites file that is wrong."""
    files: dict[str, str | bytes] = {"c.toml": GOOD_TOML, "s.toml": text}
    return Case(
        f"sites: {name}", ("plan", "c.toml", "--sites", "s.toml"), ("s.toml", *expect), files
    )


def words(name: str, argv: str, *expect: str) -> Case:
    """A command line that is wrong, over files that are right."""
    files: dict[str, str | bytes] = {"c.toml": GOOD_TOML, "p.pln": GOOD_PLAN, "s.toml": GOOD_SITES}
    return Case(f"command line: {name}", tuple(argv.split()), expect, files)


TASK = '[campaign]\nname = "c"\n[tasks.a]\ncommand = "true"\n'

CASES = [
    # Campaign files.
    toml("not TOML", "[campaign\n", ":1"),
    toml("empty", "", "campaign"),
    toml("no task and no command", '[campaign]\nname = "c"\n', "task"),
    toml("unknown table", TASK + "[gaol]\ndeadline = 3\n", "gaol", "goal"),
    toml("unknown campaign key", '[campaign]\nnmae = "c"\n[tasks.a]\ncommand="true"\n', "nmae"),
    toml("unknown task key", TASK + 'inptus = ["x"]\n', "inptus", "inputs"),
    toml("wrong type", TASK + 'processors = "two"\n', "processors"),
    toml("no processors", TASK + "processors = 0\n", "processors"),
    toml("negative runtime", TASK + "runtime = -1\n", "runtime"),
    toml("bad duration", TASK + 'runtime = "3 parsecs"\n', "runtime", "3 parsecs"),
    toml("bad size", TASK + 'outputs = [{name = "f", size = "3 miles"}]\n', "3 miles"),
    toml("negative size", TASK + 'outputs = [{name = "f", size = -1}]\n', "size"),
    toml("unknown parent", TASK + 'after = ["b"]\n', "unknown parent", '"b"'),
    toml("cycle", TASK + 'after = ["b"]\n[tasks.b]\ncommand = "true"\nafter = ["a"]\n', "cycle"),
    toml("output made twice", TASK + 'outputs = ["f"]\n[tasks.b]\ncommand = "true"\noutputs=["f"]\n', "f"),
    toml("file outside its folder", TASK + 'outputs = ["../f"]\n', ".."),
    toml("absolute output", TASK + 'outputs = ["/etc/f"]\n', "/etc/f"),
    toml("bad trade-off", TASK + "[goal]\ntrade_off = 2\n", "trade_off"),
    toml("bad budget", TASK + '[goal]\nbudget = "lots"\n', "budget", "lots"),
    toml("negative budget", TASK + "[goal]\nbudget = -1\n", "budget"),
    toml("bad deadline", TASK + '[goal]\ndeadline = "soon"\n', "deadline", "soon"),
    toml("bad threshold", TASK + '[goal]\nbudget = 1\non_budget = {"150%" = "stop"}\n', "on_budget"),
    toml("unknown threshold action", TASK + '[goal]\nbudget = 1\non_budget = {"50%" = "explode"}\n', "on_budget"),
    toml("unknown parameter in command", '[campaign]\nname="c"\ncommand = "echo {z}"\n[parameters]\nx = [1]\n', "z"),
    toml("empty parameter", '[campaign]\nname="c"\ncommand = "echo {x}"\n[parameters]\nx = []\n', "x"),
    toml("range without end", '[campaign]\nname="c"\ncommand = "echo {x}"\n[parameters]\nx = {from = 1}\n', "x"),
    toml("range of step zero", '[campaign]\nname="c"\ncommand = "echo {x}"\n[parameters]\nx = {from=1,to=2,step=0}\n', "step"),
    toml("zip of unequal lengths", '[campaign]\nname="c"\ncommand = "e {x} {y}"\n[parameters]\nx=[1]\ny=[1,2]\ncombine="zip"\n', "x"),
    toml("glob without files", '[campaign]\nname="c"\ncommand = "echo {x}"\n[parameters]\nx = {files = "*.none"}\n', "*.none"),
    toml("missing table", '[campaign]\nname="c"\ncommand = "echo {x}"\n[parameters]\nx = {table = "no.csv"}\n', "no.csv"),
    Case("toml: binary", ("plan", "c.toml"), ("c.toml",), {"c.toml": b"\x00\xff\xfe"}),
    # Plan files.
    pln("empty", "", "task"),
    pln("no main task", "parameter x integer range from 1 to 2 step 1\n", "main"),
    pln("misspelt task", GOOD_PLAN.replace("main", "mai"), ":2", "main"),
    pln("misspelt statement", "paramter x text \"a\"\n" + GOOD_PLAN, ":1", "parameter"),
    pln("truncated parameter", "parameter\n" + GOOD_PLAN, ":1"),
    pln("unknown type", "parameter y colour \"red\"\n" + GOOD_PLAN, ":1", "colour"),
    pln("text in a range", "parameter y integer range from a to 3 step 1\n" + GOOD_PLAN, ":1"),
    pln("step zero", "parameter y integer range from 1 to 3 step 0\n" + GOOD_PLAN, "step"),
    pln("wrong way", "parameter y integer range from 3 to 1 step 1\n" + GOOD_PLAN, ":1"),
    pln("duplicate parameter", "parameter x text \"a\"\n" + GOOD_PLAN, "x"),
    pln("unknown command", GOOD_PLAN.replace("exec", "exce"), ":3", "exec"),
    pln("no end of task", GOOD_PLAN.replace("endtask", ""), "endtask"),
    pln("unclosed text", 'parameter y text "a\n' + GOOD_PLAN, ":1"),
    pln("bad onerror", GOOD_PLAN.replace("exec echo $x", "onerror panic"), ":3", "ignore"),
    pln("glob without files", 'parameter y files select anyof "*.none"\n' + GOOD_PLAN, "*.none"),
    # Sites files.
    sites("not TOML", "[site\n", ":1"),
    sites("empty", "", "site"),
    sites("unknown kind", '[site.x]\nkind = "cloud9"\nprocessors = 1\n', "cloud9"),
    sites("unknown key", GOOD_SITES + "sped = 2\n", "sped", "speed"),
    sites("no processors", '[site.x]\nkind = "local"\nprocessors = 0\n', "processors"),
    sites("speed zero", GOOD_SITES + "speed = 0\n", "speed"),
    sites("negative price", GOOD_SITES.replace("0.01", "-1"), "unit_price"),
    sites("price as text", GOOD_SITES.replace("0.01", '"cheap"'), "unit_price"),
    # Recorded workflows.
    Case("wfformat: not JSON", ("plan", "w.json"), ("w.json",), {"w.json": "{"}),
    Case("wfformat: unknown parent", ("plan", "w.json"), ("w.json", "zz"), {"w.json": WF % ('["zz"]', "[]", "", "1")}),
    Case("wfformat: duplicate id", ("plan", "w.json"), ("w.json", '"a"'), {"w.json": WF % ("[]", "[]", ',{"name":"a","id":"a","parents":[],"children":[]}', "1")}),
    Case("wfformat: negative runtime", ("plan", "w.json"), ("w.json", "runtime"), {"w.json": WF % ("[]", "[]", "", "-1")}),
    Case("dax: not XML", ("plan", "w.xml"), ("w.xml",), {"w.xml": "<adag>"}),
    Case("dax: an entity", ("plan", "w.xml"), ("w.xml",), {"w.xml": '<!DOCTYPE a [<!ENTITY e SYSTEM "file:///etc/passwd">]><adag>&e;</adag>'}),
    Case("dax: no job", ("plan", "w.xml"), ("w.xml",), {"w.xml": '<adag xmlns="http://pegasus.isi.edu/schema/DAX"></adag>'}),
    Case("run of a recorded workflow without replay", ("run", "w.json"), ("w.json", "--replay"), {"w.json": WF % ("[]", "[]", "", "1")}),
    # Command lines.
    words("unknown command", "plna c.toml", "plna"),
    words("unknown option", "plan c.toml --dedline 3", "--dedline"),
    words("no campaign", "plan", "CAMPAIGN"),
    words("missing file", "plan nowhere.toml", "nowhere.toml"),
    words("a folder", "plan .", "."),
    words("unknown suffix", "plan c.docx", "c.docx"),
    words("missing sites file", "plan c.toml --sites no.toml", "no.toml"),
    words("bad deadline", "plan c.toml --deadline never", "--deadline", "never"),
    words("negative deadline", "plan c.toml --deadline -5", "--deadline"),
    words("bad budget", "plan c.toml --budget much", "--budget", "much"),
    words("foreign currency", "plan c.toml --sites s.toml --budget 3EUR", "EUR"),
    words("trade-off out of range", "plan c.toml --trade-off 7", "--trade-off"),
    words("no such processors", "plan c.toml --processors 0", "processors"),
    words("more processors than there are", "plan c.toml --sites s.toml --processors 99", "processors"),
    words("replay of what has programs", "run c.toml --replay 1", "--replay"),
    words("size scale without replay", "plan c.toml --size-scale 2", "--size-scale"),
    words("unknown run", "report no-such-run", "no-such-run"),
    words("unknown run to resume", "run --resume no-such-run", "no-such-run"),
    words("resume with a campaign", "run c.toml --resume x", "--resume"),
    words("bill of an unknown run", "bill no-such-run", "no-such-run"),
    words("unknown schema", "schema nothing", "nothing"),
]  # fmt: skip


def _tried(case: Case, folder: Path) -> tuple[Case, subprocess.CompletedProcess[str], set[str]]:
    folder.mkdir()
    for name, content in case.files.items():
        data = content.encode() if isinstance(content, str) else content
        (folder / name).write_bytes(data)
    done = run_forked(case.argv, folder, timeout=60)
    left = {str(path.relative_to(folder)) for path in folder.rglob("*")} - set(case.files)
    return case, done, left


@pytest.fixture(scope="module")
def answers(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, tuple[Case, subprocess.CompletedProcess[str], set[str]]]:
    """Every case, run once; together, because each costs a process."""
    base = tmp_path_factory.mktemp("bad")
    with ThreadPoolExecutor(2) as pool:
        folders = [base / str(i) for i in range(len(CASES))]
        return {done[0].name: done for done in pool.map(_tried, CASES, folders)}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_input_gets_one_clear_line(
    case: Case,
    answers: dict[str, tuple[Case, subprocess.CompletedProcess[str], set[str]]],
) -> None:
    """Status 2, the place and the expectation on one line (a hint may follow), nothing left."""
    _, done, left = answers[case.name]
    lines = done.stderr.strip().splitlines()

    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert [line for line in lines if not line.startswith("hint: ")] == lines[:1], done.stderr
    for expected in case.expect:
        assert expected in done.stderr, done.stderr
    assert done.stdout == ""
    assert left == set()


def test_there_are_enough_cases() -> None:
    """The table is the promise: at least sixty kinds of bad input, all different."""
    assert len({case.name for case in CASES}) == len(CASES) >= 60
