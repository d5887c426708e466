"""Shell commands that run without a Snakemake of their own, beside those that cannot."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("snakemake", reason="Snakemake is not installed: its plugin is not tested")

from snakemake_executor_plugin_bursar import run_shell
from snakemake_executor_plugin_bursar.shell_jobs import ShellCommand

PATIENCE = 200.0

# Who has started the shell: the small program, or a Snakemake.
PARENT = "tr '\\\\0' ' ' < /proc/$PPID/cmdline > {output}"
KINDS = f"""
config["prefix"] and shell.prefix("true;")
rule plain:
    output: "plain"
    input: ancient("in")
    log: "logs/plain"
    threads: 2
    resources: mem_mb=50
    conda: "env.yaml"
    container: "docker://nothing"
    shell: "{PARENT} 2> {{log}}"
rule flagged:
    output: temp("flagged")
    shell: "{PARENT}; cp {{output}} kept"
rule folder:
    output: directory("folder")
    shell: "mkdir folder; tr '\\\\0' ' ' < /proc/$PPID/cmdline > folder/said"
rule benchmarked:
    output: "benchmarked"
    benchmark: "bench.tsv"
    shell: "{PARENT}"
rule shadowed:
    output: "shadowed"
    shadow: "minimal"
    shell: "{PARENT}"
rule grouped:
    output: "grouped"
    group: "one"
    shell: "{PARENT}"
rule temporary:
    output: "temporary"
    shell: "echo {{resources.tmpdir}} > /dev/null; {PARENT}"
rule python:
    output: "python"
    run: shell("{PARENT}")
rule updated:
    output: update("updated")
    shell: "{PARENT}"
"""


def write_kinds(folder: Path) -> None:
    (folder / "Snakefile").write_text(KINDS)
    (folder / "env.yaml").write_text("dependencies: []\n")
    (folder / "in").touch()


def snakemake(folder: Path, *options: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run Snakemake with the plugin."""
    return subprocess.run(
        [sys.executable, "-m", "snakemake", "--executor", "bursar", "--jobs", "4", *options],
        cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        timeout=PATIENCE, check=False, env=os.environ | variables,
    )  # fmt: skip


ALONE = {"plain": "plain", "flagged": "kept", "folder": "folder/said"}
"""Rules that do without a Snakemake, and where they say it."""


@pytest.mark.ci
@pytest.mark.timeout(300)
def test_rules_that_do_without_a_snakemake_and_those_that_do_not(tmp_path: Path) -> None:
    write_kinds(tmp_path)
    whole = ("benchmarked", "shadowed", "grouped", "temporary", "python", "updated")

    done = snakemake(tmp_path, "--config", "prefix=", "--notemp", "--", *ALONE, *whole)

    assert done.returncode == 0, done.stdout
    for path in ALONE.values():
        assert "run_shell.py" in (tmp_path / path).read_text(), path
    for path in whole:
        assert "-m snakemake" in (tmp_path / path).read_text(), path


@pytest.mark.ci
@pytest.mark.parametrize(
    "options",
    [
        ("--bursar-whole-snakemake", "--config", "prefix="),
        ("--envvars", "HOME", "--config", "prefix="),
        ("--default-resources", "tmpdir='/tmp'", "--config", "prefix="),
        ("--config", "prefix=1"),
    ],
)  # fmt: skip
def test_what_holds_for_all_jobs_takes_a_snakemake_for_each(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    write_kinds(tmp_path)

    done = snakemake(tmp_path, *options, "--", "plain")

    assert done.returncode == 0, done.stdout
    assert "-m snakemake" in (tmp_path / "plain").read_text()


@pytest.mark.ci
def test_a_snakefile_that_sets_variables_takes_a_snakemake_for_each(tmp_path: Path) -> None:
    """On another machine the variables would be there in no other way."""
    text = (
        f'import os\nos.environ["MINE"] = "1"\nrule one:\n    output: "x"\n    shell: "{PARENT}"\n'
    )
    (tmp_path / "Snakefile").write_text(text)

    assert snakemake(tmp_path, "x").returncode == 0
    assert "-m snakemake" in (tmp_path / "x").read_text()


# Two shells, the second of which sees what the first has left.
SAME = r"""
NAME = "of the Snakefile"
rule all:
    input: "a b/first", "second", "locked", "touched"
rule first:
    output: "a b/first"
    params: text=lambda wildcards: "it's {braces} \"and\" $quotes"
    threads: 2
    resources: mem_mb=77
    shell:
        '''
        env | grep -E "THREADS|^TMP|^TEMP" | sort > {output:q}
        set -o | grep -E "pipefail|errexit|nounset" >> {output:q}
        echo {{literal}} {params.text:q} {NAME} {threads} {resources.mem_mb} {rule} >> {output:q}
        awk 'BEGIN {{ print "awk" }}' >> {output:q}; pwd | xargs basename >> {output:q}
        ls >> {output:q}; echo $0 >> {output:q}
        '''
rule second:
    input: "a b/first"
    output: "second"
    log: "deep/er/log"
    resources: shell_exec="sh"
    shell: "(readlink /proc/$$/exe | xargs basename; wc -l < {input:q}) > {output} 2> {log}"
rule locked:
    output: protected("locked"), "by/wildcard.txt"
    shell: "echo {output[0]} | tee {output}"
rule touched:
    input: "second"
    output: touch("touched")
    shell: "echo nothing; false || true"
"""


def files(folder: Path) -> dict[str, tuple[str, int]]:
    """Return text and permissions of the files of a workflow."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): (path.read_text(), path.stat().st_mode)
        for path in found
        if ".snakemake" not in path.parts
    }


@pytest.mark.ci
@pytest.mark.timeout(300)
def test_both_ways_make_the_same_files(tmp_path: Path) -> None:
    """Environment, shell options, quoting, folders, logs, permissions."""
    made = []
    for options in ((), ("--bursar-whole-snakemake",)):
        folder = tmp_path / f"way{len(made)}" / "work"
        folder.mkdir(parents=True)
        (folder / "Snakefile").write_text(SAME)
        done = snakemake(folder, *options)
        assert done.returncode == 0, done.stdout
        made.append(files(folder))

    assert made[0] == made[1]
    assert "OMP_NUM_THREADS=2" in made[0]["a b/first"][0]


def run(folder: Path, shell: str, **changed: Any) -> "subprocess.CompletedProcess[str]":
    """Run a command as a worker does."""
    command = ShellCommand(
        **{
            "command": shell, "threads": 1, "resources": {}, "has_temporary_folder": False,
            "inputs": [], "patience": 0.0, "files": [], "directories": [],
        }
        | changed
    )  # fmt: skip
    return subprocess.run(
        ["/bin/sh", "-c", command.text(sys.executable)],
        cwd=folder, text=True, capture_output=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("shell", "status"), [("true", 0), ("exit 3", 3), ("false | true", 1), ("kill -9 $$", 137)]
)
def test_the_status_is_that_of_the_command(tmp_path: Path, shell: str, status: int) -> None:
    assert run(tmp_path, shell).returncode == status


def test_nothing_is_left_of_an_earlier_try(tmp_path: Path) -> None:
    """As Snakemake does it: a command may add to its outputs, or make a folder anew."""
    for path in ("out/a", "log", "kept/file", "made/old"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("old")
    (tmp_path / "link").symlink_to("kept")

    done = run(
        tmp_path,
        "echo new >> out/a; echo new >> log; mkdir made; touch made/new; echo x > link",
        files=["out/a", "log", "link", "further/b"],
        directories=["made"],
    )

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "a").read_text() == (tmp_path / "log").read_text() == "new\n"
    assert os.listdir(tmp_path / "made") == ["new"]
    assert (tmp_path / "kept" / "file").read_text() == "old"
    assert (tmp_path / "further").is_dir()


def test_a_protected_output_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").write_text("kept")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # tests may run as root

    with pytest.raises(PermissionError, match="out: write-protected output"):
        run_shell.clear(str(tmp_path / "out"), is_directory=False)

    assert (tmp_path / "out").read_text() == "kept"


def test_an_input_that_a_file_system_shows_late_is_waited_for(tmp_path: Path) -> None:
    late = subprocess.Popen(["/bin/sh", "-c", "sleep 1; touch late"], cwd=tmp_path)
    try:
        assert run(tmp_path, "test -e late", inputs=["late"], patience=60.0).returncode == 0
    finally:
        late.wait()


def test_an_input_that_never_comes_is_named(tmp_path: Path) -> None:
    done = run(tmp_path, "touch ran", inputs=["in", "never"], files=["in"])

    assert done.returncode == 1
    assert done.stderr == "missing input after 0.0 s: in, never\n"
    assert not (tmp_path / "ran").exists()
