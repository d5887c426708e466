"""
Ends of Snakemake workflows as ``bursar plan Snakefile`` predicts them, and as Snakemake takes.

The workflows have the rule graphs of public ones (Snakemake's tutorial, rna-seq-star-deseq2,
dna-seq-gatk-variant-calling, chipseq, a grid of simulations as in its paramspace); programs are
stand-ins that wait for a time that rule and sample decide, some of them on two threads. Each is run
for half of its samples first. Then two plans are held against ``snakemake --cores 2``: of the
samples that were never seen, and of all jobs again (``--forceall``).

The tutorial is run with its real programs as well, bwa, samtools and bcftools, where they are
installed. Genome and reads are random: reads of a part of the genome with errors, more of them in
some samples than in others.

Use, in an environment with Snakemake 9::

    python benchmarks/snakemake_plans.py [--quick | --smallest] [--only real] [--json FILE]
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from figures import Benchmark, Figure, Table, at_most

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

REAL_TUTORIAL = """
rule all:
    input: "plots/quals.txt"
rule bwa_map:
    input: "data/genome.fa", "data/samples/{s}.fastq"
    output: temp("mapped/{s}.bam")
    threads: 2
    shell: "bwa mem -t {threads} {input} | samtools view -b - > {output}"
rule samtools_sort:
    input: "mapped/{s}.bam"
    output: "sorted/{s}.bam"
    shell: "samtools sort -T sorted/{wildcards.s} -O bam {input} > {output}"
rule samtools_index:
    input: "sorted/{s}.bam"
    output: "sorted/{s}.bam.bai"
    shell: "samtools index {input}"
rule bcftools_call:
    input: bam=expand("sorted/{s}.bam", s=S), bai=expand("sorted/{s}.bam.bai", s=S)
    output: "calls/all.vcf"
    shell: "bcftools mpileup -f data/genome.fa {input.bam} | bcftools call -mv - > {output}"
rule plot_quals:
    input: "calls/all.vcf"
    output: "plots/quals.txt"
    shell: "bcftools query -f '%QUAL\\n' {input} | sort -n | uniq -c > {output}"
"""
PROGRAMS = ("bwa", "samtools", "bcftools")
GENOME, READ = 230_000, 100
"""Bases of the genome, which are about those of the tutorial's, and of a read."""

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


def make_reads(folder: Path, samples: int, usual: int) -> None:
    """Write a random genome with the index of bwa, and reads of each sample."""
    random = np.random.default_rng(20260101)
    letters = np.frombuffer(b"ACGT", np.uint8)
    genome = random.integers(0, 4, GENOME)
    (folder / "data" / "samples").mkdir(parents=True)
    fasta = folder / "data" / "genome.fa"
    fasta.write_bytes(b">chr1\n" + letters[genome].tobytes() + b"\n")
    subprocess.run(["bwa", "index", fasta], check=True, capture_output=True)
    for sample in range(samples):
        count = int(usual * random.uniform(0.7, 1.3))
        places = random.integers(0, GENOME - READ, count)[:, None] + np.arange(READ)
        wrong = random.random(places.shape) < 0.005
        bases = letters[(genome[places] + wrong) % 4]
        reads = (
            b"@r%d\n%b\n+\n%b\n" % (number, read.tobytes(), b"I" * READ)
            for number, read in enumerate(bases)
        )
        (folder / "data" / "samples" / f"s{sample}.fastq").write_bytes(b"".join(reads))


def held(
    table: Table, name: str, text: str, samples: int, scale: float, reads: int = 0
) -> list[tuple[float, bool]]:
    """
    Hold two plans of a workflow against Snakemake.

    Returns
    -------
    list[tuple[float, bool]]
        Error of each plan's median, percent, and whether the end was within the 90 %.
    """
    found = []
    with tempfile.TemporaryDirectory(prefix="bursar-snakemake-") as scratch:
        folder = Path(scratch)
        (folder / "Snakefile").write_text(BEGIN + text)
        if reads:
            make_reads(folder, samples, reads)
        run_snakemake(folder, "--config", f"samples={samples // 2}", f"scale={scale}")
        for what, further in (("new samples", ()), ("all again", ("--forceall",))):
            arguments = (*further, "--config", f"samples={samples}", f"scale={scale}")
            median, late = plan(folder, " ".join(arguments))
            took = run_snakemake(folder, *arguments)
            found.append((100 * (median / took - 1), took <= late))
            table.add(f"{name}, {what}", median, late, took, found[-1][0])
    return found


def errors_of(bench: Benchmark, title: str, found: list[tuple[float, bool]]) -> None:
    """Add the table of errors."""
    sizes = [abs(error) for error, _ in found]
    bench.figures(
        title,
        [
            Figure("median error", statistics.median(sizes), "%"),
            at_most("largest error", max(sizes), 15, "%"),
            Figure("ends within the 90 %", 100 * sum(one[1] for one in found) / len(found), "%"),
        ],
    )


def with_stand_ins(bench: Benchmark) -> None:
    """Measure the five workflows whose programs wait."""
    most, scale, count = bench.of((8, 1.0, 5), (4, 0.5, 5), (2, 0.1, 1))
    table = bench.table(
        f"plans for {most} samples on 2 processors, {most // 2} of which ran before", *COLUMNS
    )
    found = []
    for name, text in list(WORKFLOWS.items())[:count]:
        found += held(table, name, text, most, scale)
    errors_of(bench, f"Errors of {len(found)} plans", found)


def with_programs(bench: Benchmark) -> None:
    """Measure the tutorial with its programs."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        bench.skip(f"the tutorial with its programs: there is no {' and no '.join(absent)}")
        return
    samples, reads, rounds = bench.of((8, 60_000, 3), (4, 30_000, 1), (2, 2_000, 1))
    table = bench.table(
        f"Snakemake's tutorial with its programs, {samples} samples, {samples // 2} ran before",
        *COLUMNS,
    )
    found = []
    for number in range(rounds):
        found += held(table, f"round {number + 1}", REAL_TUTORIAL, samples, 1.0, reads)
    errors_of(bench, f"With its programs: errors of {len(found)} plans", found)


COLUMNS = ("workflow, plan of", "median, s", "90 % below, s", "took, s", "error, %")
PARTS = {"stand-ins": with_stand_ins, "real": with_programs}


def main() -> None:
    """Measure, and print the tables."""
    bench = Benchmark(
        __file__,
        __doc__,
        lambda parser: parser.add_argument(
            "--only", choices=PARTS, help="measure this, keep the file's other tables"
        ),
    )
    if not (HERE / "snakemake").exists():
        bench.skip("workflows of Snakemake: it is not beside this Python")
        bench.write()
        return
    for name, measure in PARTS.items():
        if bench.given.only in (None, name):
            measure(bench)
    if bench.given.only is not None and bench.given.json is not None:
        bench.keep_others(json.loads(bench.given.json.read_text()))
    bench.write()


if __name__ == "__main__":
    main()
