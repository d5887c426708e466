"""
Ends of Snakemake workflows as ``bursar plan Snakefile`` predicts them, and as Snakemake takes.

The workflows have the rule graphs of public ones (Snakemake's tutorial, rna-seq-star-deseq2,
dna-seq-gatk-variant-calling, chipseq, a grid of simulations as in its paramspace); programs are
stand-ins that wait for a time that rule and sample decide, some of them on two threads. Each is run
for half of its samples first. Then two plans are held against ``snakemake --cores 2``: of the
samples that were never seen, and of all jobs again (``--forceall``).

Use, in an environment with Snakemake 9::

    python benchmarks/snakemake_plans.py [--quick]
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figures import Benchmark, Figure, at_most

BEGIN = """
import zlib
N = int(config.get("samples", 2))
S = [f"s{i}" for i in range(N)]
SCALE = float(config.get("scale", 1.0))
def take(rule, usual, *names):
    u = zlib.crc32(":".join([rule, *names]).encode()) / 2**32
    return round(SCALE * usual * (0.7 + 0.6 * u), 3)
"""

TUTORIAL = """
rule all:
    input: "plots/quals.svg"
rule bwa_map:
    output: temp("mapped/{s}.bam")
    params: t=lambda w: take("map", 3, w.s)
    threads: 2
    benchmark: "benchmarks/bwa_map/{s}.tsv"
    shell: "sleep {params.t}; echo {wildcards.s} > {output}"
rule samtools_sort:
    input: "mapped/{s}.bam"
    output: "sorted/{s}.bam"
    params: t=lambda w: take("sort", 1, w.s)
    shell: "sleep {params.t}; cp {input} {output}"
rule samtools_index:
    input: "sorted/{s}.bam"
    output: "sorted/{s}.bam.bai"
    params: t=lambda w: take("index", 0.5, w.s)
    shell: "sleep {params.t}; cp {input} {output}"
rule bcftools_call:
    input: expand("sorted/{s}.bam", s=S), expand("sorted/{s}.bam.bai", s=S)
    output: "calls/all.vcf"
    params: t=take("call", 3)
    shell: "sleep {params.t}; cat {input} > {output}"
rule plot_quals:
    input: "calls/all.vcf"
    output: "plots/quals.svg"
    params: t=take("plot", 1)
    shell: "sleep {params.t}; cp {input} {output}"
"""

RNA_SEQ = """
rule all:
    input: "results/diffexp.tsv", "results/pca.svg", "qc/multiqc.html"
rule star_index:
    output: "resources/star"
    params: t=take("star_index", 3)
    threads: 2
    shell: "sleep {params.t}; echo > {output}"
rule cutadapt:
    output: "trimmed/{s}.fq"
    params: t=lambda w: take("cutadapt", 1.5, w.s)
    shell: "sleep {params.t}; echo {wildcards.s} > {output}"
rule align:
    input: "trimmed/{s}.fq", "resources/star"
    output: "star/{s}.bam", "star/{s}.counts"
    params: t=lambda w: take("align", 3, w.s)
    threads: 2
    shell: "sleep {params.t}; cp {input[0]} {output[0]}; cp {input[0]} {output[1]}"
rule rseqc:
    input: "star/{s}.bam"
    output: "qc/{s}.txt"
    params: t=lambda w: take("rseqc", 1, w.s)
    shell: "sleep {params.t}; cp {input} {output}"
rule multiqc:
    input: expand("qc/{s}.txt", s=S)
    output: "qc/multiqc.html"
    params: t=take("multiqc", 1)
    shell: "sleep {params.t}; cat {input} > {output}"
rule count_matrix:
    input: expand("star/{s}.counts", s=S)
    output: "results/counts.tsv"
    params: t=take("count_matrix", 0.7)
    shell: "sleep {params.t}; cat {input} > {output}"
rule pca:
    input: "results/counts.tsv"
    output: "results/pca.svg"
    params: t=take("pca", 1)
    shell: "sleep {params.t}; cp {input} {output}"
rule deseq2:
    input: "results/counts.tsv"
    output: "results/diffexp.tsv"
    params: t=take("deseq2", 2)
    shell: "sleep {params.t}; cp {input} {output}"
"""

GATK = """
C = ["1", "2", "X"]
rule all:
    input: "annotated/all.vcf"
rule map_reads:
    output: "mapped/{s}.bam"
    params: t=lambda w: take("map_reads", 2.5, w.s)
    threads: 2
    shell: "sleep {params.t}; echo {wildcards.s} > {output}"
rule mark_duplicates:
    input: "mapped/{s}.bam"
    output: "dedup/{s}.bam"
    params: t=lambda w: take("mark_duplicates", 1, w.s)
    shell: "sleep {params.t}; cp {input} {output}"
rule call_variants:
    input: "dedup/{s}.bam"
    output: "called/{s}.{c}.g.vcf"
    wildcard_constraints: c="1|2|X"
    params: t=lambda w: take("call_variants", 0.8, w.c, w.s)
    shell: "sleep {params.t}; cp {input} {output}"
rule genotype:
    input: expand("called/{s}.{{c}}.g.vcf", s=S)
    output: "genotyped/{c}.vcf"
    params: t=lambda w: take("genotype", 1, w.c)
    shell: "sleep {params.t}; cat {input} > {output}"
rule merge:
    input: expand("genotyped/{c}.vcf", c=C)
    output: "annotated/all.vcf"
    params: t=take("merge", 1.5)
    shell: "sleep {params.t}; cat {input} > {output}"
"""

CHIP_SEQ = """
rule all:
    input: "qc/multiqc.html", "peaks/consensus.bed"
rule bowtie2:
    output: "mapped/{s}.bam"
    params: t=lambda w: take("bowtie2", 2, w.s)
    shell: "sleep {params.t}; echo {wildcards.s} > {output}"
rule filter:
    input: "mapped/{s}.bam"
    output: "filtered/{s}.bam"
    params: t=lambda w: take("filter", 1, w.s)
    shell: "sleep {params.t}; cp {input} {output}"
rule macs2:
    input: "filtered/{s}.bam"
    output: "peaks/{s}.bed"
    params: t=lambda w: take("macs2", 1.5, w.s)
    shell: "sleep {params.t}; cp {input} {output}"
rule fingerprint:
    input: "filtered/{s}.bam"
    output: "qc/{s}.txt"
    params: t=lambda w: take("fingerprint", 0.8, w.s)
    shell: "sleep {params.t}; cp {input} {output}"
rule consensus:
    input: expand("peaks/{s}.bed", s=S)
    output: "peaks/consensus.bed"
    params: t=take("consensus", 1)
    shell: "sleep {params.t}; cat {input} > {output}"
rule multiqc:
    input: expand("qc/{s}.txt", s=S)
    output: "qc/multiqc.html"
    params: t=take("multiqc", 1)
    shell: "sleep {params.t}; cat {input} > {output}"
"""

GRID = """
rule all:
    input: "plots/summary.svg"
rule simulate:
    output: "sim/{s}.{beta}.tsv"
    wildcard_constraints: beta="low|mid|high"
    params: t=lambda w: take("simulate", {"low": 0.6, "mid": 1.2, "high": 2.4}[w.beta], w.s)
    shell: "sleep {params.t}; echo {wildcards.s} > {output}"
rule summary:
    input: expand("sim/{s}.{beta}.tsv", s=S, beta=["low", "mid", "high"])
    output: "plots/summary.svg"
    params: t=take("summary", 1)
    shell: "sleep {params.t}; cat {input} > {output}"
"""

WORKFLOWS = {
    "tutorial": TUTORIAL,
    "rna-seq": RNA_SEQ,
    "gatk": GATK,
    "chip-seq": CHIP_SEQ,
    "grid": GRID,
}
HERE = Path(sys.executable).parent


def run_snakemake(folder: Path, *arguments: str) -> float:
    """Run the workflow on two cores; return the seconds from its first job to its last end."""
    begun = time.time()
    subprocess.run(
        [HERE / "snakemake", "--cores", "2", "--quiet", "all", *arguments],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    records = (folder / ".snakemake" / "metadata").iterdir()
    found = [json.loads(path.read_text()) for path in records if path.is_file()]
    ran = [one for one in found if one["starttime"] >= begun]
    return max(one["endtime"] for one in ran) - min(one["starttime"] for one in ran)


def plan(folder: Path, arguments: str) -> tuple[float, float]:
    """Return the seconds that half of the runs and nine of ten should stay below."""
    said = subprocess.run(
        [HERE / "bursar", "plan", "Snakefile", "-p", "2", "--snakemake", arguments, "--json"],
        cwd=folder,
        check=True,
        capture_output=True,
        env=os.environ | {"BURSAR_HISTORY": "none", "PATH": f"{HERE}:{os.environ['PATH']}"},
    )
    forecast = json.loads(said.stdout)["forecast"]["end_s"]
    return forecast["p50"], forecast["p90"]


def main() -> None:
    """Measure, and print the table."""
    bench = Benchmark(__file__, __doc__)
    if not (HERE / "snakemake").exists():
        bench.skip("workflows of Snakemake: it is not beside this Python")
        bench.write()
        return
    most, scale, count = bench.of((8, 1.0, 5), (4, 0.5, 5), (2, 0.1, 1))
    errors: list[float] = []
    inside = 0
    table = bench.table(
        f"plans for {most} samples on 2 processors, {most // 2} of which ran before",
        "workflow, plan of",
        "median, s",
        "90 % below, s",
        "took, s",
        "error, %",
    )
    for name, text in list(WORKFLOWS.items())[:count]:
        with tempfile.TemporaryDirectory(prefix="bursar-snakemake-") as scratch:
            folder = Path(scratch)
            (folder / "Snakefile").write_text(BEGIN + text)
            run_snakemake(folder, "--config", f"samples={most // 2}", f"scale={scale}")
            for what, further in (("new samples", ()), ("all again", ("--forceall",))):
                arguments = (*further, "--config", f"samples={most}", f"scale={scale}")
                median, late = plan(folder, " ".join(arguments))
                took = run_snakemake(folder, *arguments)
                errors.append(100 * (median / took - 1))
                inside += took <= late
                table.add(f"{name}, {what}", median, late, took, errors[-1])
    sizes = [abs(error) for error in errors]
    bench.figures(
        f"Errors of {len(errors)} plans",
        [
            Figure("median error", statistics.median(sizes), "%"),
            at_most("largest error", max(sizes), 15, "%"),
            Figure("ends within the 90 %", 100 * inside / len(errors), "%"),
        ],
    )
    bench.write()


if __name__ == "__main__":
    main()
