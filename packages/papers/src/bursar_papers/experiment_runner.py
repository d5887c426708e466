"""Measures cells on several processes and stores each result at once."""

import hashlib
import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, ProcessPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import IO, Any

import bursar
from bursar.model.errors import BursarError
from bursar_papers.experiment import Cell, Effort, Experiment, ExperimentResult, Row

OnProgress = Callable[[int, int], None]
"""Told cells done and cells in all."""


def run_experiment(
    experiment: Experiment,
    effort: Effort,
    *,
    data: Path,
    kept: Path,
    pool: Executor | None = None,
    on_progress: OnProgress | None = None,
) -> ExperimentResult:
    """
    Measure all cells that are not stored already.

    Parameters
    ----------
    data
        Folder with traces.
    kept
        File of cells measured before, which is added to; JSON, one a line. Cells that
        other code measured do not count.
    pool
        Where cells are measured; None: here. See :func:`worker_processes`.
    """
    cells = list(experiment.cells(effort))
    keys = [key_of(experiment, cell) for cell in cells]
    before = read_kept(kept)
    missing = [i for i, key in enumerate(keys) if key not in before]
    done = len(cells) - len(missing)
    if on_progress is not None:
        on_progress(done, len(cells))
    with _appending(kept) as file:
        for i, rows, seconds in _measured(experiment, cells, missing, data, pool):
            entry = {"key": keys[i], "cell": dict(cells[i]), "rows": rows, "seconds": seconds}
            before[keys[i]] = entry
            file.write(json.dumps(entry, allow_nan=False) + "\n")
            # A cell may take minutes: what a crash or Ctrl-C interrupts later must not be measured
            # again.
            file.flush()
            done += 1
            if on_progress is not None:
                on_progress(done, len(cells))
    rows = [row for key in keys for row in before[key]["rows"]]
    return ExperimentResult(
        experiment=experiment,
        effort=effort,
        rows=rows,
        cells=len(cells),
        cached=len(cells) - len(missing),
        seconds=sum(before[key]["seconds"] for key in keys),
        seeds=len({cell["seed"] for cell in cells}),
        findings=experiment.findings(rows),
    )


def key_of(experiment: Experiment, cell: Cell) -> str:
    """Return the key of a stored cell, which changes with the cell and with any of our code."""
    # With the code's digest: a figure must never mix cells of two versions of the code.
    said = json.dumps([experiment.paper, experiment.figure, dict(cell), code_stamp()])
    return hashlib.sha256(said.encode()).hexdigest()[:32]


@cache
def code_stamp() -> str:
    """Return a digest of the source of Bursar and of the studies."""
    digest = hashlib.sha256()
    for package in (Path(bursar.__file__).parent, Path(__file__).parent):
        for module in sorted(package.rglob("*.py")):
            digest.update(module.relative_to(package.parent).as_posix().encode())
            digest.update(module.read_bytes())
    return digest.hexdigest()


def read_kept(path: Path) -> dict[str, dict[str, Any]]:
    """Return the cells measured before, by key; a line cut short by a crash is skipped."""
    if not path.exists():
        return {}
    found = {}
    for line in path.read_text().splitlines():
        try:
            entry = json.loads(line)
            found[entry["key"]] = entry
        except (ValueError, KeyError, TypeError):
            continue
    return found


@contextmanager
def _appending(path: Path) -> Iterator[IO[str]]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The last line of a crashed run has no end; the next entry would be joined to it and lost
        # as well.
        cut_short = path.exists() and not path.read_bytes().endswith(b"\n")
        with path.open("a") as file:
            if cut_short and path.stat().st_size:
                file.write("\n")
            yield file
    except OSError as error:
        raise BursarError(f"{path}: cannot be written: {error.strerror}") from None


def _measured(
    experiment: Experiment,
    cells: Sequence[Cell],
    missing: Sequence[int],
    data: Path,
    pool: Executor | None,
) -> Iterator[tuple[int, list[Row], float]]:
    """Yield index, rows and seconds of each missing cell, in the order of completion."""
    measure = experiment.measure
    if pool is None or len(missing) <= 1:
        for i in missing:
            yield (i, *_measure_timed(measure, cells[i], data))
        return
    # In the order of completion, so that each cell is stored at once, however long an earlier one
    # takes.
    waiting = {pool.submit(_measure_timed, measure, dict(cells[i]), data): i for i in missing}
    while waiting:
        ended, _ = wait(waiting, return_when=FIRST_COMPLETED)
        for future in ended:
            yield (waiting.pop(future), *future.result())


@contextmanager
def worker_processes(jobs: int) -> Iterator[Executor | None]:
    """
    Provide a pool of ``jobs`` processes that measure cells; None for one: this process.

    Processes start with the first use; on an error, cells that have not begun are dropped.
    """
    if jobs == 1:
        yield None
        return
    # Not forked: threads of this process may hold locks.
    with ProcessPoolExecutor(
        jobs, mp_context=get_context("spawn"), initializer=_ignore_interrupts
    ) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _ignore_interrupts() -> None:
    """Ignore Ctrl-C in a worker process: the terminal sends it to all, the parent acts on it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _measure_timed(
    measure: Callable[[Cell, Path], list[Row]], cell: Cell, data: Path
) -> tuple[list[Row], float]:
    began = time.perf_counter()
    rows = measure(cell, data)
    return rows, time.perf_counter() - began
