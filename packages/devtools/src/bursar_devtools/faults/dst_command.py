"""Implements ``bursar-dst``, which simulates a service, or runs, under faults for many seeds."""

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from bursar_devtools.faults.event_trace import EventTrace
from bursar_devtools.faults.seed_verdict import SeedVerdict, simulate
from bursar_devtools.run_faults import simulate_run

_BAR = 30  # characters
_AHEAD = 8
"""Seeds handed to a process in one batch."""


def main(words: Sequence[str] | None = None) -> int:
    """
    Run the command.

    Returns
    -------
    int
        0 when every seed passed; 1 when some failed; 2 for invalid arguments.
    """
    options = _options().parse_args(words)
    if options.runs:
        seeds = range(options.first, options.first + options.seeds)
        return _search_runs(seeds if options.seed is None else [options.seed], options.trace)
    if options.seed is not None:
        return _replay(options.seed, whole=options.trace)
    return _search(range(options.first, options.first + options.seeds), options.jobs)


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bursar-dst",
        description="Simulates the execution service under faults. A seed decides everything "
        "that happens, so that what fails can be replayed.",
    )
    parser.add_argument(
        "--runs", action="store_true", help="the engine of a run, with copies of tasks in most"
    )
    parser.add_argument("--seeds", type=_positive, default=200, help="how many (200)")
    parser.add_argument("--from", dest="first", type=_natural, default=0, help="the first (0)")
    parser.add_argument("--jobs", type=_positive, default=os.cpu_count(), help="processes")
    parser.add_argument("--seed", type=_natural, help="only this one, told step by step")
    parser.add_argument("--trace", action="store_true", help="with --seed: from its begin")
    return parser


def _natural(word: str) -> int:
    number = int(word)
    if number < 0:
        raise argparse.ArgumentTypeError(f"expected a number from 0 on, got {word}")
    return number


def _positive(word: str) -> int:
    number = int(word)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a number from 1 on, got {word}")
    return number


def _replay(seed: int, *, whole: bool) -> int:
    verdict = simulate(seed, keep_all=whole)
    print("\n".join(verdict.lines))
    print(_one_line(verdict))
    return 1 if verdict.wrong else 0


def _search(seeds: range, jobs: int) -> int:
    began = time.monotonic()
    failed = 0
    done = 0
    total: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for verdict in _all(seeds, jobs):
        done += 1
        total.update(events=verdict.events, steps=verdict.steps, lives=verdict.lives)
        total["seconds"] += round(verdict.seconds)
        faults.update(verdict.faults)
        if verdict.wrong:
            failed += 1
            _wipe()
            print("\n".join(verdict.lines))
            print(_one_line(verdict))
            print(f"replay: bursar-dst --seed {verdict.seed} --trace\n", flush=True)
        _draw(done, len(seeds), failed)
    _wipe()
    took = time.monotonic() - began
    print(f"{done} seeds, {failed} failed; {took:.1f} s, {took / max(1, done) * 1e3:.0f} ms each")
    print(
        f"{total['seconds'] / 3600:.1f} virtual hours, {total['steps']:,} steps, "
        f"{total['events']:,} events, {total['lives']:,} lives"
    )
    for kind, count in sorted(faults.items(), key=lambda item: (-item[1], item[0])):
        print(f"{count:10,}  {kind}")
    return 1 if failed else 0


def _search_runs(seeds: Sequence[int], trace: bool) -> int:
    failed = 0
    faults: Counter[str] = Counter()
    for seed in seeds:
        told = EventTrace(keep_all=trace)
        wrong = simulate_run(seed, trace=told)
        faults.update(told.faults)
        if wrong or trace:
            failed += bool(wrong)
            print("\n".join(told.lines()))
            print(f"seed {seed}: {wrong or 'nothing is wrong'} (digest {told.digest})")
    print(f"{len(seeds)} seeds, {failed} failed")
    for kind, count in sorted(faults.items(), key=lambda item: (-item[1], item[0])):
        print(f"{count:10,}  {kind}")
    return 1 if failed else 0


def _all(seeds: Iterable[int], jobs: int) -> Iterator[SeedVerdict]:
    if jobs == 1:
        yield from map(simulate, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(simulate, seeds, chunksize=_AHEAD)


def _one_line(verdict: SeedVerdict) -> str:
    what = verdict.wrong or "nothing is wrong"
    return f"seed {verdict.seed} at {verdict.seconds:.3f} s: {what} (digest {verdict.digest})"


def _draw(done: int, count: int, failed: int) -> None:
    if sys.stderr.isatty():
        full = _BAR * done // count
        bar = "#" * full + "-" * (_BAR - full)
        print(f"\r[{bar}] {done}/{count} seeds, {failed} failed ", end="", file=sys.stderr)


def _wipe() -> None:
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
