"""
Mutation testing of a random sample::

    make mutants                                  # 440 mutants, seed 1
    .venv/bin/python -m tests.mutants --count 160 --seed 2
    .venv/bin/python -m tests.mutants --area queue --minutes 3

What is interrupted goes on where it was, from the results in the folder ``.mutants``; those of
other code are not used. ``--again`` tries survivors once more, after tests were added.
"""

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

from scipy.stats import binomtest
from tests.mutants import rounds
from tests.mutants.areas import AREAS, FULL
from tests.mutants.mutations import Mutant, mutated, sample
from tests.mutants.reached_tests import reaching

ROOT = Path(__file__).resolve().parents[2]

STATE = ROOT / ".mutants"

LONGEST = 8.0
"""Seconds of tests per mutant, the shortest tests first; those beyond are left out."""

_copy = ROOT  # of this process


def main() -> int:
    """Return 0 where at least the demanded part was killed, 1 otherwise."""
    asked = argparse.ArgumentParser(prog="tests.mutants", description=__doc__)
    asked.add_argument("--count", type=int, default=FULL, help="mutants over all areas")
    asked.add_argument("--seed", type=int, default=1, help="which sample is drawn")
    asked.add_argument("--area", choices=[*AREAS], action="append", help="only these areas")
    asked.add_argument("--minutes", type=float, default=1e9, help="when to stop for now")
    asked.add_argument(
        "--again", action="store_true", help="try survivors and what did not end once more"
    )
    asked.add_argument("--least", type=float, default=0.95, help="part that must be killed")
    asked.add_argument("--processes", type=int, default=2)
    given = asked.parse_args()
    end = time.monotonic() + 60 * given.minutes
    areas = {name: AREAS[name] for name in given.area or AREAS}
    share = {name: round(area.share * given.count / FULL) for name, area in areas.items()}
    drawn = sample(ROOT, {name: area.files for name, area in areas.items()}, share, given.seed)
    results = _Results(STATE / "results.jsonl", forget_survivors=given.again)

    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    os.environ.setdefault("BURSAR_TEST_DATA", str(ROOT.parent / "shared" / "data"))
    for lane in range(given.processes):
        rounds.copy_repository(ROOT, STATE / f"copy{lane}")
    for name in areas:
        left = [m for m in drawn if m.area == name and results.of(m) is None]
        if left and time.monotonic() < end:
            seen = _seen(name)
            rounds.import_ahead(seen.modules)
            _try(left, seen, results, end, given.processes)
    return _report(drawn, results, given.least)


def _try(
    mutants: list[Mutant], seen: rounds.Seen, results: "_Results", end: float, processes: int
) -> None:
    context = multiprocessing.get_context("fork")
    lanes = context.SimpleQueue()
    for lane in range(processes):
        lanes.put(str(STATE / f"copy{lane}"))
    with ProcessPoolExecutor(processes, context, _take_copy, (lanes,)) as pool:
        jobs = ((mutant, seen, end) for mutant in mutants)
        for mutant, (verdict, tests, seconds) in zip(mutants, pool.map(_one, jobs), strict=True):
            if verdict is not None:
                results.add(mutant, verdict, tests, seconds)
                print(f"{verdict:8} {seconds:5.1f} s {tests:3} tests  {mutant.name}", flush=True)


def _take_copy(lanes: "multiprocessing.SimpleQueue[str]") -> None:
    global _copy
    _copy = Path(lanes.get())


def _one(job: tuple[Mutant, rounds.Seen, float]) -> tuple[str | None, int, float]:
    mutant, seen, end = job
    if time.monotonic() > end:
        return None, 0, 0.0
    begin = time.monotonic()
    source = (ROOT / mutant.path).read_text()
    try:
        code = mutated(source, mutant.number)
    except SyntaxError:
        return "invalid", 0, 0.0
    tests = reaching(source, mutant.path, mutant.line, seen, LONGEST)
    if not tests:
        return "unreached", 0, 0.0
    limit = 10.0 + 3.0 * sum(seen.seconds[name] for name in tests)
    log = _copy / f"{mutant.path.replace('/', '.')}.{mutant.number}.log"
    verdict = rounds.judge(_copy, mutant.path, code, tests, limit, log)
    return verdict, len(tests), time.monotonic() - begin


def _seen(name: str) -> rounds.Seen:
    """What a clean run of an area's tests shows: of this code and these tests, or a new one."""
    area = AREAS[name]
    files = sorted(str(f.relative_to(ROOT)) for p in area.files for f in ROOT.glob(p))
    tested = sorted(f for t in area.tests for f in [ROOT / t, *(ROOT / t).rglob("*.py")])
    texts = [*(ROOT / f for f in files), *(f for f in tested if f.is_file())]
    digest = sha256(b"\0".join(f.read_bytes() for f in texts)).hexdigest()[:16]
    kept = STATE / f"seen-{name}-{digest}.json"
    if not kept.exists():
        print(f"{name}: a clean run of {', '.join(area.tests)}", flush=True)
        seen = rounds.look(STATE / "copy0", area.tests, files)
        kept.write_text(json.dumps(asdict(seen)))
    return rounds.Seen(**json.loads(kept.read_text()))


class _Results:
    """Verdicts by mutant and text of its file, kept on disk."""

    def __init__(self, path: Path, *, forget_survivors: bool) -> None:
        self._path = path
        path.parent.mkdir(exist_ok=True)
        lines = path.read_text().splitlines() if path.exists() else []
        self._known = {entry[0]: entry for entry in map(json.loads, lines)}
        if forget_survivors:
            bad = ("survived", "unreached", "broken", "timeout")
            self._known = {k: e for k, e in self._known.items() if e[1] not in bad}

    def of(self, mutant: Mutant) -> str | None:
        """Verdict on a mutant; None: it was not tried on this code."""
        entry = self._known.get(_key(mutant))
        return None if entry is None else str(entry[1])

    def add(self, mutant: Mutant, verdict: str, tests: int, seconds: float) -> None:
        """Note a verdict."""
        entry = [_key(mutant), verdict, tests, round(seconds, 1)]
        self._known[entry[0]] = entry
        with self._path.open("a") as file:
            file.write(json.dumps(entry) + "\n")


def _key(mutant: Mutant) -> str:
    digest = sha256((ROOT / mutant.path).read_bytes()).hexdigest()[:12]
    return f"{digest} {mutant.name}"


def _report(drawn: list[Mutant], results: _Results, least: float) -> int:
    verdicts = {mutant: results.of(mutant) for mutant in drawn}
    for area in dict.fromkeys(mutant.area for mutant in drawn):
        counts = Counter(verdicts[m] for m in drawn if m.area == area)
        print(f"{area:12} " + ", ".join(f"{n} {v or 'not yet'}" for v, n in counts.most_common()))
    for mutant, verdict in verdicts.items():
        if verdict in ("survived", "unreached", "broken"):
            print(f"{verdict}: {mutant.name}")
    left = sum(v is None for v in verdicts.values())
    if left:
        print(f"{left} not tried yet: the same command goes on")
    counted = [v for v in verdicts.values() if v not in (None, "invalid")]
    killed = sum(v in ("killed", "timeout") for v in counted)
    if not counted:
        return 1
    part = binomtest(killed, len(counted)).proportion_ci(method="wilson")
    print(
        f"{killed} of {len(counted)} killed: {killed / len(counted):.1%}"
        f" (95 % interval {part.low:.1%} to {part.high:.1%})"
    )
    return 0 if not left and killed >= least * len(counted) else 1


if __name__ == "__main__":
    sys.exit(main())
