"""
Environments of rules: conda, containers and storage, with Snakemake itself and Bursar's workers.

The programs ``conda`` and ``apptainer`` are stand-ins, which do what Snakemake asks of them and say
that they were there. What Snakemake and the workers do around them is real.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("snakemake", reason="Snakemake is not installed: its plugin is not tested")

CONDA = """#!/bin/sh
case "$*" in
    "info --json") echo '{"conda_prefix": "BASE", "platform": "linux-64"}' ;;
    --version) echo conda 24.9.2 ;;
    clean*) ;;
    config*) echo '{"get": {"channel_priority": "strict"}}' ;;
    "env create"*)
        for last do :; done
        mkdir -p "$last/bin" "$last/conda-meta"
        printf '#!/bin/sh\\necho tool of $CONDA_PREFIX' > "$last/bin/tool"
        chmod +x "$last/bin/tool" ;;
    *) echo "conda: $*" >&2; exit 1 ;;
esac
"""
ACTIVATE = 'export CONDA_PREFIX="$1" PATH="$1/bin:$PATH"\n'
APPTAINER = """#!/bin/sh
case "$1" in
    --version) echo apptainer version 1.3.0; exit ;;
    exec) ;;
    *) exit 1 ;;
esac
while [ "${1%.sif}" = "$1" ]; do shift; done
export INSIDE="$(basename "$1")"
shift
exec "$@"
"""
# sysrsync, which the storage plugin calls, needs the program: here it copies.
RSYNC = '#!/bin/sh\nfor last do before=$from; from=$last; done\nexec cp -a "$before" "$last"\n'
SNAKEFILE = """
rule all:
    input: "by_conda", "by_container", "by_both"
rule by_conda:
    output: "by_conda"
    conda: "env.yaml"
    shell: "tool > {output}; echo worker $BURSAR_PROCESSORS >> {output}"
rule by_container:
    output: "by_container"
    container: "image.sif"
    threads: 2
    shell: "echo $INSIDE worker $BURSAR_PROCESSORS > {output}"
rule by_both:
    input: "by_conda", "by_container"
    output: "by_both"
    conda: "env.yaml"
    log: "log"
    shell: "tool > {output} 2> {log}"
"""


def snakemake(folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    """Run Snakemake with the plugin and the stand-ins."""
    programs = {"conda": CONDA, "activate": ACTIVATE, "apptainer": APPTAINER, "rsync": RSYNC}
    base = folder / "base"
    (base / "bin").mkdir(parents=True)
    for name, text in programs.items():
        (base / "bin" / name).write_text(text.replace("BASE", str(base)))
        (base / "bin" / name).chmod(0o755)
    return subprocess.run(
        [sys.executable, "-m", "snakemake", "--executor", "bursar", "--jobs", "4", *options],
        cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=250,
        check=False,
        env=os.environ | {"PATH": f"{base / 'bin'}:{os.environ['PATH']}", "BURSAR_HISTORY": "none"},
    )  # fmt: skip


@pytest.mark.ci
@pytest.mark.timeout(300)
def test_conda_and_containers_are_entered_on_the_workers(tmp_path: Path) -> None:
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    (tmp_path / "env.yaml").write_text("channels: [conda-forge]\ndependencies: [tool]\n")
    (tmp_path / "image.sif").touch()

    done = snakemake(tmp_path, "--software-deployment-method", "conda", "apptainer")

    assert done.returncode == 0, done.stdout
    lines = (tmp_path / "by_conda").read_text().splitlines()
    assert lines[0].startswith(f"tool of {tmp_path}/.snakemake/conda/")
    assert lines[1] == "worker 1"
    assert (tmp_path / "by_container").read_text() == "image.sif worker 2\n"
    assert (tmp_path / "by_both").read_text().startswith("tool of ")


STORED = """
rule all:
    input: "done/all"
rule one:
    input: "in.txt"
    output: "mid/{s}"
    shell: "cat {input} > {output}; echo $BURSAR_PROCESSORS >> {output}"
rule two:
    input: expand("mid/{s}", s=["a", "b"])
    output: "done/all"
    shell: "cat {input} > {output}"
"""


@pytest.mark.ci
@pytest.mark.timeout(300)
@pytest.mark.skipif(
    importlib.util.find_spec("snakemake_storage_plugin_fs") is None,
    reason="snakemake-storage-plugin-fs is not installed",
)
def test_files_come_from_a_storage_and_go_there(tmp_path: Path) -> None:
    """Nothing but sources and software is shared, as far as Snakemake knows."""
    (tmp_path / "Snakefile").write_text(STORED)
    store = tmp_path / "store"
    store.mkdir()
    (store / "in.txt").write_text("hello\n")

    done = snakemake(
        tmp_path,
        *("--default-storage-provider", "fs", "--default-storage-prefix", str(store)),
        *("--shared-fs-usage", "persistence", "software-deployment", "sources", "source-cache"),
    )

    assert done.returncode == 0, done.stdout
    assert (store / "done" / "all").read_text() == "hello\n1\nhello\n1\n"
    assert not (tmp_path / "mid").exists()
