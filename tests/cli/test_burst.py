"""A burst of jobs on real processes: what a draw by rank gains over a draw by chance."""

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import bursar
from bursar.dispatch.journal import read_journal

SITES = """\
[site.narrow]
processors = 1
[site.fast]
processors = 1
speed = 4
[site.plain]
processors = 2
[site.wide]
processors = 4
speed = 2
"""
"""Four queues that differ in width and speed; at speed 1 they do 15 jobs in a job's time."""

BURST = '''\
[campaign]
name = "burst"
command = """
case $BURSAR_WORKER in
fast*) sleep {quarter} ;;
wide*) sleep {half} ;;
*) sleep {one} ;;
esac"""
[parameters]
i = {{ from = 1, to = {jobs}, step = 1 }}
[task]
id = "t{{i}}"
runtime = {one}
'''
"""Jobs that sleep as long as one of their runtime takes at the site's speed."""


def burst(folder: Path, choice: str, seed: int) -> tuple[float, Counter[str]]:
    """
    Return the mean seconds, and how many jobs each site did.

    Seconds count from the begin of the first job until a job has ended. Sites are asked for
    their state once, before the burst, as where they publish seldom.
    """
    broker = bursar.Brokering(choice=choice, rank_by="index", refresh=3600.0, seed=seed)
    name = f"{choice}-{seed}"
    result = bursar.run(
        folder / "burst.toml", folder / "sites.toml",
        broker=broker, name=name, runs=folder / "runs", fresh=True,
    )  # fmt: skip
    assert result.succeeded
    records = read_journal(folder / "runs" / name / "journal.sqlite").records
    begin = min(record.outcome.start for record in records)
    seconds = float(np.mean([record.outcome.end for record in records])) - begin
    return seconds, Counter(record.site for record in records)


@pytest.mark.parametrize(
    ("jobs", "seconds", "repetitions"),
    [
        pytest.param(30, 0.12, 1, marks=pytest.mark.ci),
        pytest.param(120, 0.2, 20, marks=pytest.mark.long),
    ],
)
def test_a_stochastic_burst_is_done_sooner_than_one_by_chance(
    tmp_path: Path, jobs: int, seconds: float, repetitions: int
) -> None:
    """
    The mean lifetime by ``random`` less that by ``stochastic``, with equal seeds, is above 0 by
    its 95 % interval; one repetition has none, and shows where the jobs go.

    By chance the narrow site gets a quarter of the jobs, so that its last one ends after
    jobs / 4 times a job's length; by rank all four queues end at about jobs / 15 times that.
    """
    one = {"one": seconds, "half": seconds / 2, "quarter": seconds / 4}
    (tmp_path / "sites.toml").write_text(SITES)
    (tmp_path / "burst.toml").write_text(BURST.format(jobs=jobs, **one))

    rules = ("random", "stochastic")
    found = [[burst(tmp_path, rule, seed) for rule in rules] for seed in range(repetitions)]

    for _, (_, done_at) in found:
        assert done_at["narrow"] < jobs / 4 < done_at["wide"]
    seconds = np.array([[lifetime for lifetime, _ in pair] for pair in found])
    gains = seconds[:, 0] - seconds[:, 1]
    print(dict(zip(rules, seconds.mean(axis=0).round(3).tolist(), strict=True)), gains.round(3))
    if repetitions > 1:
        error = gains.std(ddof=1) / math.sqrt(repetitions)
        half = float(stats.t.ppf(0.975, repetitions - 1)) * error
        print(f"gain {gains.mean():.3f} +- {half:.3f} s")
        assert gains.mean() - half > 0
