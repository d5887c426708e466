"""A hundred workflows that Snakemake cannot read: each one line on what is wrong, and where."""

import os
import random
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("snakemake", reason="Snakemake is not installed")

from bursar.formats.job_files import snakefile, snakemake_dag
from bursar.formats.job_files.snakefile import read_snakefile
from bursar.model.errors import InputError

GOOD = 'rule a:\n    output: "a"\n    shell: "touch a"\n'


def rule(line: str) -> str:
    """Return a workflow of one rule with one more line."""
    return f'rule a:\n    output: "a"\n    {line}\n    shell: "touch a"\n'


SYNTAX = [
    'rule a:\n    output: "a\n    shell: "touch a"\n',
    'rule a\n    output: "a"\n    shell: "touch a"\n',
    'rule a:\n    output "a"\n    shell: "touch a"\n',
    'rule a:\n  output: "a"\n      shell: "touch a"\n',
    'rule a:\n    output: "a"\n    shel: "touch a"\n',
    'rule a:\n    output: "a", \n    outputs: "b"\n    shell: "touch a"\n',
    'rule a:\n    output: "a"\n    shell: "touch a"\n    shell: "touch b"\n',
    'rule a:\n    output: "a"\n    shell: touch a\n',
    'rule 1a:\n    output: "a"\n    shell: "touch a"\n',
    'rule a:\n    output: ["a"\n    shell: "touch a"\n',
    'rule a:\n    output: a="a", "b"\n    shell: "touch a"\n',
    'rules a:\n    output: "a"\n',
    "def f(:\n    pass\n" + GOOD,
    "x = = 1\n" + GOOD,
    "for i in range(3)\n    pass\n" + GOOD,
    "if True:\n" + GOOD,
    "import\n" + GOOD,
    "(((\n",
    "'''\n",
    "\trule a:\n  output: 'a'\n",
    'rule a:\n    run:\n  x\n    output: "a"\n',
    "lambda\n",
]
PYTHON = [
    "1 / 0\n",
    "x = undefined\n",
    "import no_such_module\n",
    "raise ValueError('nothing\\nof this\\nwill do')\n",
    "raise RuntimeError\n",
    "open('no_such_file')\n",
    "assert False, 'wrong'\n",
    "import sys; sys.exit(3)\n",
    "import sys; sys.exit('no more')\n",
    "raise KeyboardInterrupt\n",
    "[][0]\n",
    "int('x')\n",
    "None.x\n",
    "def f(): return f()\nf()\n",
    "raise WorkflowError('as it is')\n",
]
RULES = [
    'include: "no_such.smk"\n' + GOOD,
    'configfile: "no_such.yaml"\n' + GOOD,
    'configfile: "bad.yaml"\n' + GOOD,
    'configfile: "list.yaml"\n' + GOOD,
    'configfile: "bad.json"\n' + GOOD,
    "x = config['absent']\n" + GOOD,
    "x = config['absent']['deeper']\n" + GOOD,
    'module m:\n    snakefile: "no_such.smk"\nuse rule * from m\n',
    "use rule b from m\n" + GOOD,
    "use rule b as c with:\n    output: 'c'\n" + GOOD,
    "ruleorder: a > b\n" + rule('input: "none"'),
    GOOD + GOOD,
    rule('input: "no_such_input"'),
    rule('input: "x/{s}"'),
    rule("input: rules.none.output"),
    rule("input: lambda wildcards: wildcards.none"),
    rule("input: lambda: 'x'"),
    rule("input: 5"),
    rule("input: None"),
    rule("input: lambda wildcards: 1 / 0"),
    rule('input: expand("{x}", y=1)'),
    rule('input: "a"'),
    'rule a:\n    input: "b"\n    output: "a"\nrule b:\n    input: "a"\n    output: "b"\n',
    'rule a:\n    input: "c"\n    output: "a"\nrule b:\n    input: "a"\n    output: "b"\n'
    'rule c:\n    input: "b"\n    output: "c"\n',
    'rule all:\n    input: "x1"\nrule a:\n    output: "x{i}"\nrule b:\n    output: "{x}1"\n',
    'rule a:\n    output: "{x}", "b"\n',
    'rule all:\n    input: "z"\nrule a:\n    output: "y"\n',
    rule("threads: 'many'"),
    rule("threads: lambda wildcards: 1 / 0"),
    rule("threads: []"),
    rule("resources: mem_mb='lots'"),
    rule("resources: runtime='soon'"),
    rule("resources: 5"),
    rule("resources: mem_mb=[1]"),
    rule("resources: mem_mb=lambda wildcards: 1 / 0"),
    rule("resources: mem_mb={}"),
    rule("priority: 'high'"),
    rule("shadow: 'none such'"),
    rule("params: x=lambda wildcards, none: none"),
    rule("retries: 'often'"),
    rule('log: "{s}.log"'),
    rule('benchmark: "{s}.tsv"'),
    rule("container: 5"),
    'rule a:\n    output: dynamic("a{i}")\n    shell: "touch a1"\n',
    'rule a:\n    input: lambda w: checkpoints.none.get().output\n    output: "a"\n',
    'rule a:\n    output: temp(protected("a"))\n    shell: "touch a"\n',
    'storage:\n    provider="no_such"\n' + GOOD,
    'min_version("99.0")\nfrom snakemake.utils import min_version\nmin_version("99.0")\n' + GOOD,
]
ARGUMENTS = [
    "no_such_target",
    "--until no_such_rule",
    "--configfile no_such.yaml",
    "--configfile bad.yaml",
    "--config x",
    "--config =1",
    "--no-such-option",
    "--cores many",
    "--cores",
    "--set-threads a=many",
    "--set-threads a",
    "--set-resources a:mem_mb",
    "--resources gpu",
    "--resources gpu=x",
    "--directory Snakefile",
    "--profile no_such",
    "--default-resources x",
    "--executor no_such",
]
NOISE = [bytes(random.Random(seed).randbytes(200)) for seed in range(8)]
FILES = [
    b"",
    b"\n\n",
    b"\xef\xbb\xbf",
    b"\x7fELF\x02\x01\x01\0\0",
    b"PK\x03\x04",
    b"\0" * 100,
    *NOISE,
]

CASES: list[tuple[bytes, str]] = [
    *((text.encode(), "") for text in (*SYNTAX, *PYTHON, *RULES)),
    *((GOOD.encode(), words) for words in ARGUMENTS),
    *((content, "") for content in FILES),
]


def test_there_are_a_hundred() -> None:
    assert len(set(CASES)) == len(CASES) >= 100


class Forked:
    """
    Runs :mod:`bursar.formats.job_files.snakemake_dag` in a fork, where Snakemake is loaded.

    A hundred starts of Python with Snakemake would take minutes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.statuses: list[int] = []

    def __call__(self, words: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        """Stand in for :func:`subprocess.run`."""
        arguments = words[words.index(snakemake_dag.__file__) + 1 :]
        said = self.folder / "said"
        child = os.fork()
        if child == 0:
            self._run(words[2], arguments, said)
        _, status = os.waitpid(child, 0)
        self.statuses.append(os.waitstatus_to_exitcode(status))
        return subprocess.CompletedProcess(words, self.statuses[-1], said.read_bytes())

    def _run(self, program: str, arguments: list[str], said: Path) -> None:
        status = 1
        try:
            file = os.open(said, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
            os.dup2(file, 1)
            os.dup2(file, 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            sys.argv = [program]
            snakemake_dag.main(arguments)
            status = 0
        except SystemExit as end:
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr)
            status = end.code if isinstance(end.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)


@pytest.fixture
def forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Forked]:
    import snakemake.cli  # noqa: F401 (loaded before the fork)

    made = Forked(tmp_path)
    (tmp_path / "bad.yaml").write_text("a: [1\nb: }")
    (tmp_path / "list.yaml").write_text("- 1\n- 2\n")
    (tmp_path / "bad.json").write_text('{"a": ')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(snakefile.subprocess, "run", made)
    return made


@pytest.mark.parametrize(
    ("content", "arguments"),
    [
        # All of them take 40 s of a processor: one in twelve always runs.
        pytest.param(*case, marks=[] if at % 12 == 0 else pytest.mark.ci)
        for at, case in enumerate(CASES)
    ],
)
def test_what_snakemake_cannot_read_is_one_line(
    forked: Forked, tmp_path: Path, content: bytes, arguments: str
) -> None:
    path = tmp_path / "Snakefile"
    path.write_bytes(content)

    with pytest.raises(InputError) as refused:
        read_snakefile(path, arguments)

    said = refused.value.message
    assert refused.value.where == str(path) or "no rule" in said.lower()
    assert "\n" not in said
    for vague in ("Traceback", "in <module>", "said nothing.", "otherwise than version 9"):
        assert vague not in said
    assert len(said) > len("Snakemake refuses the workflow: ") + 5
