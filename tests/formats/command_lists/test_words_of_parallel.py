"""Lists of commands in the words of GNU parallel, held against the program itself where it is."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.formats.command_lists.command_campaign import read_command_list
from bursar.formats.command_lists.halting import HaltRule
from bursar.formats.command_lists.input_sources import (
    InputRules,
    ValueSource,
    read_rows,
    split_words,
)
from bursar.formats.command_lists.job_log import HEADER, LoggedJob, read_job_log
from bursar.formats.command_lists.templates import CommandTemplate, quoted
from bursar.model.errors import InputError
from bursar.model.task import Exec, Shell

PARALLEL = shutil.which("parallel")

VALUES = ["a", "b c", "x'y.gz", "z$q&;(", 'ü"', "q*?[]{}~#!^|<>\\", "", "a=b", "~a", "a.b/c", "/a"]
PATHS = ["a.b/c.d", "a/b/", "/", ".bashrc", "a.tar.gz", "a/.b", "plain", "/x/y.z", "a//b"]


def commands_of(words: Sequence[str], rules: InputRules | None = None, **how: Any) -> list[str]:
    """Return the commands of a list of words, without files."""
    command, sources = split_words(words)
    table = read_rows(sources, rules or InputRules(), lambda name: Path(name).read_bytes())
    template = CommandTemplate.of(command, names=table.names, **how)
    return [
        template.filled(row, number, quotes=bool(command))
        for number, row in enumerate(table.rows, start=1)
    ]


def refusal(read: Callable[[], object]) -> InputError | None:
    """Return why a text is refused; None: it is read."""
    try:
        read()
    except InputError as error:
        return error
    return None


def theirs(*words: str) -> list[str]:
    """Return the commands that GNU parallel would run."""
    if PARALLEL is None:
        pytest.skip("GNU parallel is not installed: the package parallel brings it")
    done = subprocess.run(
        [PARALLEL, "--will-cite", "--dry-run", "-k", *words],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    "words",
    [
        ["echo", ":::", *VALUES],
        ["echo", "{}", "{.}", "{/}", "{//}", "{/.}", ":::", *PATHS],
        ["echo {} | wc -c; x '{}' \"{.}\"", ":::", *PATHS],
        ["echo", "{#}", "{}", ":::", "a", "b"],
        ["echo", "{1}-{2}", ":::", "a", "b", ":::", "c", "d", "e"],
        ["echo", "{2.}{1/}{-1}{-2}", ":::", "a/b", "c", ":::", "d.e", "f.g"],
        ["echo", "{3}", "{9}", ":::", "a", ":::", "b"],
        ["echo", ":::", "a", "b", "c", ":::+", "1", "2", "3"],
        ["echo", "{}", ":::", "a", "b", ":::+", "1", "2", ":::", "x", "y"],
        [":::", "echo 1", "echo '2 3'"],
        ["echo", "{", "}", "{a}", "{ }", "{1", ":::", "a"],
        ["echo;", ":::", "a"],
    ],
    ids=lambda words: " ".join(words)[:40],
)
def test_commands_are_those_of_parallel(words: list[str]) -> None:
    """
    Replacement strings, quoting, combinations and links, to the byte.
    """
    assert commands_of(words) == theirs(*words)


@pytest.mark.parametrize(
    ("options", "rules", "words"),
    [
        (["--colsep", ","], {"colsep": re.compile(",")}, ["echo", "{2}+{1}", ":::", "a,b", "c"]),
        (["-C", " +"], {"colsep": re.compile(" +")}, ["echo", ":::", "a  b", "c d"]),
        (
            ["-C", ",", "--trim", "lr"],
            {"colsep": re.compile(","), "trim": "lr"},
            ["echo", ":::", "a , b"],
        ),
        (["-N2"], {"group": 2}, ["echo", "{1}-{2}", ":::", "a", "b", "c"]),
        (["-n3"], {"group": 3}, ["echo", ":::", "a", "b", "c", "d"]),
        (["--link"], {"links_all": True}, ["echo", ":::", "a", "b", "c", ":::", "1", "2"]),
        (
            ["--header", ":"],
            {"header": True},
            ["echo", "{x.} {y} {z}", ":::", "x", "a.b", "c.d", ":::", "y", "1"],
        ),
        (["-d", ";"], {"delimiter": ";"}, ["echo", "{}", "::::", "semicolons"]),
        ([], {}, ["echo", "{}", "::::", "lines", "lines"]),
        (["--link"], {"links_all": True}, ["echo", "::::", "lines", ":::", "x", "y"]),
        (
            ["--header", ":", "-C", ","],
            {"header": True, "colsep": re.compile(",")},
            ["echo", "{b} {a}", "::::", "table"],
        ),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, list) else "",
)
def test_rules_of_input_are_those_of_parallel(
    options: list[str],
    rules: dict[str, Any],
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Columns, groups, links, headers and delimiters, of values and of files.
    """
    monkeypatch.chdir(tmp_path)
    Path("semicolons").write_text("a;b c;d")
    Path("lines").write_text("1\n2 3\n\nlast")
    Path("table").write_text("a,b\n1,2\n3,4\n")

    assert commands_of(words, InputRules(**rules)) == theirs(*options, *words)


@pytest.mark.parametrize(
    ("options", "how", "words"),
    [
        (["-I", ",,"], {"replace": ",,"}, ["echo", ",,", "{}", ":::", "a b"]),
        (["-q"], {"quotes": True}, ["echo", "a b", "{}", "$HOME", ":::", "q r"]),
    ],
)
def test_replacement_string_and_quoting_of_words(
    options: list[str], how: dict[str, Any], words: list[str]
) -> None:
    """
    Another text for all values, and words that the shell takes as they are.
    """
    assert commands_of(words, **how) == theirs(*options, *words)


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_a_value_is_one_word_for_the_shell(value: str) -> None:
    """
    Whatever it holds: the shell gives back what was put in.
    """
    assert shlex.split(quoted(value)) == [value]


@given(st.text(), st.lists(st.text(), max_size=3))
def test_any_text_is_a_template_or_refused(text: str, values: list[str]) -> None:
    """
    Only Perl and the slot's number are refused.
    """
    error = refusal(lambda: CommandTemplate.of([text]).filled(values, 1))

    assert error is None or ("{=" in text or "{%}" in text)
    assert error is None or error.where == "command"


@pytest.mark.parametrize(
    ("words", "place", "message"),
    [
        ([":::+", "a"], "", '":::+" links to the source before it'),
        (["echo {= s/a/b/ =}", ":::", "a"], "command", "is Perl, which is not run here"),
        (["echo {%}", ":::", "a"], "command", "not known before it starts"),
        (["echo", "::::", "latin"], "latin:2", "is not UTF-8 at byte 1 of the line"),
        (["echo", "::::", "null"], "null:1", "has a null character"),
        (["echo", ":::", "a", "b\0c"], "value 2 after :::", "has a null character"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(
    words: list[str], place: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    In one line: where, and what was found.
    """
    monkeypatch.chdir(tmp_path)
    Path("latin").write_bytes(b"a\n\xe4\n")
    Path("null").write_bytes(b"a\0b\n")

    with pytest.raises(InputError, match=re.escape(message)) as caught:
        commands_of(words)

    assert caught.value.where == place
    assert "\n" not in caught.value.message


def test_a_header_needs_a_line_and_groups_one_source() -> None:
    """
    Both are refused by what would be unclear.
    """
    with pytest.raises(InputError, match="has no first line to name the columns"):
        read_rows([ValueSource(values=())], InputRules(header=True), lambda name: b"")
    two = [ValueSource(values=("a",)), ValueSource(values=("b",))]
    with pytest.raises(InputError, match="goes with one input source"):
        read_rows(two, InputRules(group=2), lambda name: b"")


# When a list stops.


@pytest.mark.parametrize(
    ("text", "counts", "stops"),
    [
        ("never", (9, 0, 9), False),
        ("now,fail=1", (0, 3, 9), False),
        ("now,fail=1", (1, 0, 9), True),
        ("2", (1, 0, 9), True),
        ("soon,fail=50%", (4, 0, 9), False),
        ("soon,fail=50%", (5, 0, 9), True),
        ("10%", (1, 8, 9), True),
        ("now,success=2", (7, 1, 9), False),
        ("now,success=2", (0, 2, 9), True),
        ("-1", (0, 1, 9), True),
        ("soon,done=3", (1, 2, 9), True),
    ],
)
def test_a_list_stops_by_its_rule(text: str, counts: tuple[int, int, int], stops: bool) -> None:
    """
    After so many failures, successes or ends, or such a share of all jobs.
    """
    failed, succeeded, total = counts
    rule = HaltRule.of(text)

    assert rule.reached(failed=failed, succeeded=succeeded, total=total) is stops


@pytest.mark.parametrize(
    "text", ["", "later", "now", "now,fail", "now,fail=0", "soon,fail=-1", "3"]
)
def test_a_rule_that_is_none_is_refused(text: str) -> None:
    """
    With an example of one that is.
    """
    with pytest.raises(InputError, match="now,fail=1"):
        HaltRule.of(text)


# Job logs.

JOBS = st.builds(
    LoggedJob,
    number=st.integers(1, 99),
    host=st.sampled_from([":", "lab"]),
    start=st.floats(0, 2e9).map(lambda x: round(x, 3)),
    seconds=st.floats(0, 1e5).map(lambda x: round(x, 3)),
    received=st.integers(0, 10**9),
    exit_value=st.integers(-1, 255),
    signal=st.integers(0, 64),
    command=st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"])),
)


@given(st.lists(JOBS))
def test_a_job_log_is_read_back(jobs: list[LoggedJob]) -> None:
    """
    The last line of each job counts, and a last line that was cut off does not.
    """
    text = HEADER + "".join(job.line() for job in jobs)

    assert read_job_log(text, "log") == {job.number: job for job in jobs}
    assert read_job_log(text + "1\t:\t12", "log") == read_job_log(text, "log")


@given(st.text())
def test_any_other_text_is_refused_by_its_line(text: str) -> None:
    """
    Never a traceback, also of a log with a wrong line.
    """
    for log in (text, HEADER + text):
        error = refusal(partial(read_job_log, log, "log"))
        assert error is None or re.fullmatch(r"log:\d+", error.where)


def test_a_log_of_parallel_is_read(tmp_path: Path) -> None:
    """
    What the program itself has written, a failure and a signal included.
    """
    if PARALLEL is None:
        pytest.skip("GNU parallel is not installed: the package parallel brings it")
    log = tmp_path / "log"
    subprocess.run(
        [PARALLEL, "--will-cite", "--joblog", str(log), "-k", "{}"],
        input="true\nexit 3\nkill -9 $$\n",
        text=True,
        check=False,
    )

    found = read_job_log(log.read_text(), "log")

    assert {n: (job.exit_value, job.signal) for n, job in found.items()} == {
        1: (0, 0),
        2: (3, 0),
        3: (0, 9),
    }
    assert log.read_text().startswith(HEADER)
    for line, job in zip(log.read_text().splitlines(True)[1:], found.values(), strict=True):
        assert line == job.line()


# Files of commands.


def test_a_file_of_commands_is_a_campaign(tmp_path: Path) -> None:
    """
    One task a line, which runs in the folder of the file; comments and empty lines are none.
    """
    path = tmp_path / "commands.txt"
    path.write_text("# first\necho 1\n\n  echo 'two words'  \r\n")

    campaign = read_command_list(path)

    assert campaign.name == "commands"
    assert [task.id for task in campaign.workflow.tasks] == ["1", "2"]
    assert [task.parameters for task in campaign.workflow.tasks] == [{"line": 2}, {"line": 4}]
    assert [task.steps for task in campaign.workflow.tasks] == [
        (Shell(f"cd {tmp_path} || exit\necho 1"),),
        (Shell(f"cd {tmp_path} || exit\necho 'two words'"),),
    ]


def test_a_file_of_commands_names_its_shell(tmp_path: Path) -> None:
    """
    By its first line, as scripts do.
    """
    path = tmp_path / "commands.txt"
    path.write_text("#!/bin/bash\necho $BASH_VERSION\n")

    (task,) = read_command_list(path).workflow.tasks

    assert task.steps == (Exec(("/bin/bash", "-c", f"cd {tmp_path} || exit\necho $BASH_VERSION")),)


@pytest.mark.parametrize(
    ("content", "place", "message"),
    [
        (b"", "", "has no command, expected one a line"),
        (b"# only\n\n", "", "has no command"),
        (b"echo 1\necho \xff\n", ":2", "is not UTF-8 at byte 6"),
        (b"echo 1\necho \\\n  2\n", ":2", 'ends with "\\", but a command is one line'),
        (b"echo a\0b\n", ":1", "has a null character"),
        (b"#!bash\necho\n", ":1", "expected the path of one program"),
        (b"#!/usr/bin/env bash\necho\n", ":1", "expected the path of one program"),
    ],
)
def test_a_malformed_file_of_commands_is_refused_by_its_line(
    content: bytes, place: str, message: str, tmp_path: Path
) -> None:
    """
    In one line: the file, the line, and what was expected.
    """
    path = tmp_path / "commands.txt"
    path.write_bytes(content)

    with pytest.raises(InputError, match=re.escape(message)) as caught:
        read_command_list(path)

    assert caught.value.where == f"{path}{place}"


@given(content=st.binary(max_size=60))
def test_any_file_of_commands_is_read_or_refused(
    content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """
    Never a traceback.
    """
    path = tmp_path_factory.getbasetemp() / "any-commands.txt"
    path.write_bytes(content)
    error = refusal(lambda: read_command_list(path))

    assert error is None or error.where.startswith(str(path))
