"""
Workflows of Snakemake by each of its executors, side by side, on a Slurm test cluster and here.

One workflow has many short jobs, the other one is Snakemake's tutorial (map, sort, index, call,
plot) with stand-ins that wait. In each round every executor carries out both, in another order:
Snakemake's own ``local`` and Bursar on this machine; ``cluster-generic``, ``slurm`` and Bursar on
one cluster of 4 nodes under real Slurm. All of them ask for news each second, and none waits before
the first time. Whatever a job costs beside its sleep is the Snakemake that ``cluster-generic`` and
``slurm`` start for each job, on the same processors; Bursar on Slurm runs shell commands without
one, and with one where it is told to.

Use, in an environment with Snakemake 9 and the plugins ``slurm`` and ``cluster-generic``::

    python benchmarks/snakemake_executors.py [--quick]
"""

import importlib.util
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figures import Benchmark, Figure, at_most
from snakemake_plans import BEGIN, TUTORIAL

from bursar_devtools.testgrid.slurm import SlurmCluster
from bursar_devtools.testgrid.slurm_requirements import PACKAGES, missing_programs

SHORT_JOBS = """
rule all:
    input: expand("out/{s}", s=range(int(config["samples"])))
rule short:
    output: "out/{s}"
    shell: "sleep 0.2; touch {output}"
"""
STATUS = """#!/bin/sh
case $(squeue --noheader --states=all --format=%T --jobs "$1" 2>/dev/null) in
    COMPLETED) echo success ;;
    PENDING|CONFIGURING|RUNNING|COMPLETING) echo running ;;
    *) echo failed ;;
esac
"""
CLUSTER = """
[site.cluster]
kind = "slurm"
processors = 16
queue = "main"
unit_price = "1 SU/core-hour"
reach = "127.0.0.1"
environment = {{ SLURM_CONF = "{conf}" }}
"""
AT_A_TIME = "8"
REMOTE = ("--jobs", AT_A_TIME, "--seconds-between-status-checks", "1", "--latency-wait", "20")
WAYS = {
    "local": ("--executor", "local", "--cores", str(os.cpu_count())),
    "bursar, this machine": ("--executor", "bursar", *REMOTE),
    "bursar, Slurm": ("--executor", "bursar", *REMOTE, "--bursar-sites", "sites.toml"),
    "bursar, Slurm, whole": (
        *("--executor", "bursar", *REMOTE, "--bursar-sites", "sites.toml"),
        "--bursar-whole-snakemake",
    ),
    "cluster-generic": (
        *("--executor", "cluster-generic", *REMOTE),
        *("--cluster-generic-submit-cmd", "sbatch --parsable -p main -c {threads} -o /dev/null"),
        *("--cluster-generic-status-cmd", "bin/status.sh"),
        *("--cluster-generic-cancel-cmd", "scancel"),
    ),
    "slurm": (
        *("--executor", "slurm", *REMOTE, "--slurm-init-seconds-before-status-checks", "1"),
        *("--default-resources", "slurm_partition=main", "mem_mb=100", "--slurm-no-account"),
        *("--slurm-status-command", "squeue"),
    ),
}
OTHERS = ("cluster-generic", "slurm")
OURS = "bursar, Slurm"
PATIENCE = 600


def took(folder: Path, way: str, text: str, samples: int, conf: str) -> float:
    """Run a workflow in a new folder by an executor; return the seconds that the command took."""
    folder.mkdir()
    (folder / "Snakefile").write_text(text)
    (folder / "sites.toml").write_text(CLUSTER.format(conf=conf))
    (folder / "bin").mkdir()
    # Jobs of the plugin for Slurm lose the variable that says where the test cluster is.
    step = f'#!/bin/sh\nSLURM_CONF={conf} exec {shutil.which("srun")} "$@"\n'
    for name, script in (("status.sh", STATUS), ("srun", step)):
        (folder / "bin" / name).write_text(script)
        (folder / "bin" / name).chmod(0o755)
    config = ("--config", f"samples={samples}", "scale=0.2")
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", *WAYS[way], *config],
        cwd=folder,
        env=os.environ
        | {
            "SLURM_CONF": conf,
            "BURSAR_HISTORY": "none",
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=PATIENCE,
        check=False,
    )
    seconds = time.monotonic() - begun
    if done.returncode != 0:
        raise SystemExit(f"{way}: {done.stdout.decode(errors='replace')[-2000:]}")
    shutil.rmtree(folder)
    return seconds


def main() -> None:
    """Measure, and print the tables."""
    bench = Benchmark(__file__, __doc__)
    plugins = ("slurm", "cluster_generic", "bursar")
    absent = [
        name
        for name in ("snakemake", *(f"snakemake_executor_plugin_{one}" for one in plugins))
        if importlib.util.find_spec(name) is None
    ]
    if absent or missing_programs():
        bench.skip(f"executors of Snakemake side by side: no {', '.join(absent) or PACKAGES} here")
        bench.write()
        return
    rounds, short, samples = bench.of((2, 30, 4), (1, 10, 0), (1, 1, 0))
    workflows = {f"{short} short jobs": (SHORT_JOBS, short)}
    if samples:
        workflows[f"tutorial, {samples} samples"] = (BEGIN + TUTORIAL, samples)
    with tempfile.TemporaryDirectory(prefix="bursar-executors-") as scratch:
        cluster = SlurmCluster.up(Path(scratch) / "c", name="beside", nodes=4, cpus=4)
        try:
            for title, (text, count) in workflows.items():
                compare(bench, Path(scratch), cluster, title, text, count, rounds)
        finally:
            cluster.down()
    bench.write()


def compare(
    bench: Benchmark,
    scratch: Path,
    cluster: SlurmCluster,
    title: str,
    text: str,
    count: int,
    rounds: int,
) -> None:
    """Add the table of one workflow, with each executor once in each round."""
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    conf = cluster.environment["SLURM_CONF"]
    for at in range(rounds):
        ways = list(WAYS)
        for way in ways[at % len(ways) :] + ways[: at % len(ways)]:
            found[way].append(took(scratch / "w", way, text, count, conf))
    table = bench.table(
        f"{title}: seconds of the whole command, {rounds} rounds",
        "executor",
        "median",
        "least",
        "most",
    )
    for way, seconds in found.items():
        table.add(way, statistics.median(seconds), min(seconds), max(seconds))
    ratios = [
        ours / min(others)
        for ours, *others in zip(found[OURS], *(found[one] for one in OTHERS), strict=True)
    ]
    bench.figures(
        f"{title}: Bursar on Slurm beside the faster of {' and '.join(OTHERS)} of each round",
        [
            at_most("median ratio", statistics.median(ratios), 1.0),
            Figure("least", min(ratios), ""),
            Figure("most", max(ratios), ""),
        ],
    )


if __name__ == "__main__":
    main()
