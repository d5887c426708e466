"""Rounds on ``bursar run``: the run, its workers and, on clusters, their daemons are killed."""

import json
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.run_lives import RunLives, Start, start_command
from tests.soak.leftovers import describe, kill_all, left_over, processes_of
from tests.soak.rounds import Findings

from bursar.dispatch.folders import attempt_folder, folder_name
from bursar.dispatch.journal import read_journal
from bursar.model.task import Status
from bursar_devtools.testgrid.processes import is_running

WORKERS = ("bursar.worker.worker", "bursar.provisioning.pilot")
"""Modules that a worker's process runs."""

PATIENCE = 120.0
"""Seconds after which a round is given up."""

CAMPAIGN = """\
[campaign]
name = "soak"
[parameters]
i = {{ from = 0, to = {last}, step = 1 }}
[tasks.piece]
command = '''echo begin {{i}} $$ >> {tally}
for n in 0 1 2 3; do echo {{i}} $n; sleep {step}; done > {{outputs}}
echo end {{i}} $$ >> {tally}
echo $$'''
outputs = ["piece-{{i}}.txt"]
runtime = {runtime}
[tasks.sum]
over = []
command = "cat {{inputs}} > {{outputs}}"
inputs = [{{ from = "piece" }}]
outputs = ["sum.txt"]
runtime = 0.05
[retry]
attempts = 60
backoff = 0.05
ceiling = 0.2
"""

ALWAYS = {
    "bill.json", "journal.sqlite", "journal.sqlite.head", "journal.sqlite.lock", "plan.json",
    "report.html", "results.csv", "results.jsonl", "reuse.sqlite", "run.json", "tasks.msgpack",
}  # fmt: skip
"""Files of a run that has ended, beside the campaign's own below ``files``."""


@dataclass(slots=True)
class Soaked:
    """
    A campaign whose tasks say when they begin and end, and write their outputs in four parts.

    Attributes
    ----------
    run
        The run's processes.
    pieces
        How many tasks there are, beside the one that gathers their outputs.
    tally
        A file outside of the run's folder, to which every attempt appends.
    """

    run: RunLives
    pieces: int
    tally: Path

    @classmethod
    def lay_out(
        cls, folder: Path, sites: str, start: Start, *, pieces: int, step: float, budget: float
    ) -> "Soaked":
        """
        Write the campaign and its sites.

        Parameters
        ----------
        folder
            Folder of the round.
        sites
            Text of the sites file.
        start
            How the command is started.
        pieces
            How many tasks.
        step
            Seconds after each of the four lines that a task writes.
        budget
            Currency units.
        """
        tally = folder / "tally"
        run = RunLives(
            folder / "run",
            budget=budget,
            # Runs of other people on this machine are none of ours.
            environment={"BURSAR_OWNERS": str(folder / "owners.sqlite")},
            start=start,
        )
        text = CAMPAIGN.format(last=pieces - 1, tally=tally, step=step, runtime=4 * step + 0.02)
        (run.folder / "c.toml").write_text(text)
        (run.folder / "s.toml").write_text(sites)
        return cls(run, pieces, tally)

    @property
    def lines(self) -> list[list[str]]:
        """Words of each line of the tally: begin or end, the task's number, its process."""
        text = self.tally.read_text() if self.tally.exists() else ""
        return [line.split() for line in text.splitlines()]

    def begun(self) -> int:
        """Return how many tasks have begun at least once."""
        return len({words[1] for words in self.lines if words[0] == "begin"})

    def wait_for(self, begun: int) -> bool:
        """Wait until so many tasks have begun; False when the run ends before."""
        give_up = time.monotonic() + PATIENCE
        while self.begun() < begun:
            if not self.run.is_alive:
                return False
            if time.monotonic() > give_up:
                raise AssertionError(f"{self.begun()} of {begun} tasks began in {PATIENCE:g} s")
            time.sleep(0.005)
        return True

    def workers(self) -> list[int]:
        """Return the run's workers, by process."""
        return processes_of(self.run.folder, WORKERS)

    def expected(self) -> dict[str, list[str]]:
        """Return the lines of each output, by name."""
        pieces = {f"piece-{i}.txt": [f"{i} {n}" for n in range(4)] for i in range(self.pieces)}
        return {**pieces, "sum.txt": sorted(line for lines in pieces.values() for line in lines)}


def check_outputs(soaked: Soaked, found: Findings, *, all_there: bool) -> None:
    """Every output that has its name is whole; at the end, each is there and nothing else."""
    expected = soaked.expected()
    files = soaked.run.made / "files"
    there = sorted(p for p in files.rglob("*") if p.is_file()) if files.exists() else []
    for path in there:
        name = str(path.relative_to(files))
        lines = path.read_text().splitlines()
        whole = name in expected and sorted(lines) == sorted(expected[name])
        found.need(whole, f"output {name} is not what its task wrote: {lines[:5]}")
    if all_there:
        missing = sorted(set(expected) - {path.name for path in there})
        found.need(not missing, f"outputs are missing: {missing[:5]}")


def check_results(soaked: Soaked, found: Findings) -> None:
    """Each task has one result, from an attempt that really came to its end."""
    made = soaked.run.made
    rows = [json.loads(line) for line in (made / "results.jsonl").read_text().splitlines()]
    wanted = {*(f"piece-{i}" for i in range(soaked.pieces)), "sum"}
    counted = Counter(row["task"] for row in rows)
    found.need(set(counted) == wanted and len(rows) == len(wanted), f"results: {counted}")
    wrong = [row["task"] for row in rows if row["status"] != "succeeded"]
    found.need(not wrong, f"not succeeded: {wrong[:5]}")
    ended = {(words[1], words[2]) for words in soaked.lines if words[0] == "end"}
    for row in rows:
        if row["task"] != "sum":
            pair = (row["task"].removeprefix("piece-"), row["stdout"].strip())
            found.need(pair in ended, f"the result of {pair} is of an attempt that did not end")
    state = read_journal(made / "journal.sqlite")
    final = Counter(record.outcome.task for record in state.records if record.final)
    found.need(
        sorted(final) == list(range(len(wanted))) and set(final.values()) <= {1},
        f"final outcomes in the journal: {final}",
    )
    found.repeated = sum(row["attempts"] - 1 for row in rows)


def count_overlaps(lines: Iterable[Sequence[str]], found: Findings) -> None:
    """Count attempts that came to their end after another attempt of their task had begun."""
    open_attempts: dict[str, list[str]] = {}
    outlived: set[tuple[str, str]] = set()
    for what, task, process in lines:
        if what == "begin":
            outlived.update((task, one) for one in open_attempts.get(task, []))
            open_attempts.setdefault(task, []).append(process)
        elif (task, process) in outlived:
            found.overlapped += 1


def check_money(soaked: Soaked, found: Findings) -> dict[str, Any]:
    """The bill adds up, is the ledger's, holds nothing back, and is within the budget."""
    bill = json.loads((soaked.run.made / "bill.json").read_text())
    total = bill["total_micros"]
    found.need(bill["held_micros"] == 0, f"still held: {bill['held_micros']} micro-units")
    found.need(not bill["unsettled"], f"unsettled: {bill['unsettled']}")
    leases = sum(lease["total_micros"] for lease in bill["leases"])
    tasks = sum(task["amount_micros"] for task in bill["tasks"])
    rest = sum(lease["remainder_micros"] for lease in bill["leases"])
    found.need(leases == total, f"leases come to {leases}, the bill to {total}")
    found.need(tasks + rest == total, f"tasks and remainders: {tasks} + {rest}, not {total}")
    found.need(total <= bill["granted_micros"], f"{total} paid of {bill['granted_micros']}")
    balances: Counter[str] = Counter()
    for move in read_journal(soaked.run.made / "journal.sqlite").transfers:
        balances[move.source] -= move.amount
        balances[move.target] += move.amount
    paid = sum(amount for account, amount in balances.items() if account.startswith("site:"))
    found.need(paid == total, f"the ledger paid {paid}, the bill says {total}")
    open_holds = {a: n for a, n in balances.items() if a.startswith("held:") and n}
    found.need(not open_holds, f"holds are open in the ledger: {open_holds}")
    found.billed = sum(site["billed_cpu_s"] for site in bill["sites"])
    return bill


def check_folder(soaked: Soaked, found: Findings, *more: str) -> None:
    """The run's folder holds what a run without faults leaves there, and nothing else."""
    made = soaked.run.made
    own = {str(path.relative_to(made)) for path in made.rglob("*") if path.is_file()}
    # What a failed attempt has left stays, for whoever looks into it: a node's death makes some.
    ids = [*(f"piece-{i}" for i in range(soaked.pieces)), "sum"]
    failed = [
        attempt_folder(folder_name(o.task, ids[o.task]), o.attempt)
        for o in read_journal(made / "journal.sqlite").attempts
        if o.status is Status.FAILED
    ]
    may_be = tuple(f"work/{name}/" for name in failed)
    odd = {name for name in own - ALWAYS - set(more) if not name.startswith(("files/", *may_be))}
    found.need(not odd, f"left in the run's folder: {sorted(odd)[:8]}")
    found.need(own >= ALWAYS, f"not in the run's folder: {sorted(ALWAYS - own)}")
    state = json.loads((made / "run.json").read_text())["state"]
    found.need(state == "finished", f"the run's state is {state}")
    owners = soaked.run.folder.parent / "owners.sqlite"
    if owners.exists():
        with closing(sqlite3.connect(owners)) as book:
            rows = book.execute(
                "SELECT pid, site, name, processors FROM held JOIN holders ON holder = holders.id"
            ).fetchall()
        # Rows of a killed process stay, and do not count, until somebody looks next.
        held = [row for row in rows if is_running(row[0])]
        found.need(not held, f"the owners' book says that processors are held: {held}")


def check_processes(soaked: Soaked, found: Findings, patience: float = 60.0) -> None:
    """No process of the round is there any more."""
    left = left_over(soaked.run.folder.parent, patience)
    found.need(not left, f"processes are left: {describe(left)}")
    kill_all(left)


def check_end(soaked: Soaked, found: Findings, *files: str) -> dict[str, Any]:
    """Check everything but the record that the money is held against; return the bill."""
    check_results(soaked, found)
    count_overlaps(soaked.lines, found)
    check_outputs(soaked, found, all_there=True)
    bill = check_money(soaked, found)
    check_folder(soaked, found, *files)
    check_processes(soaked, found)
    return bill


def kill_run(soaked: Soaked, found: Findings) -> None:
    """Kill the run's own process, if it is there."""
    if soaked.run.kill():
        found.kills["runner"] += 1


def kill_workers(soaked: Soaked, rng: random.Random, found: Findings, share: float) -> None:
    """Kill some of the workers, at least one if there is any."""
    there = soaked.workers()
    chosen = rng.sample(there, max(1, round(share * len(there)))) if there else []
    found.kills["worker"] += kill_all(chosen)


def wait_for_moment(soaked: Soaked, rng: random.Random, number: int) -> None:
    """
    Wait for the moment of a round's strike.

    Most moments are drawn by the tasks that have begun, since a busy machine takes its time to
    come to them; others by the clock, to meet a run while it begins or looks after what a killed
    one left. The first is always one at which tasks are left to do.
    """
    if number == 0 or rng.random() < 0.5:
        begun = rng.randint(1, max(1, int(0.8 * soaked.pieces)))
        if soaked.wait_for(begun):
            time.sleep(rng.uniform(0.0, 0.05))
    else:
        give_up = time.monotonic() + rng.uniform(0.0, 1.5)
        while soaked.run.is_alive and time.monotonic() < give_up:
            time.sleep(0.005)


@dataclass(slots=True)
class PaidTime:
    """
    The time for which processors may be billed: while the run or workers of it live.

    Attributes
    ----------
    soaked
        The campaign, whose first process has just been started.
    began
        When it was started, by the monotonic clock.
    away
        Seconds in which neither the run nor a worker of it was there.
    """

    soaked: Soaked
    began: float
    away: float = 0.0

    @classmethod
    def start(cls, soaked: Soaked) -> "PaidTime":
        """Start the run."""
        began = time.monotonic()
        soaked.run.start()
        return cls(soaked, began)

    def resume(self, found: Findings, pause: float) -> None:
        """Look at the outputs of a run that was killed, and resume it after some seconds."""
        killed = time.monotonic()
        check_outputs(self.soaked, found, all_there=False)
        time.sleep(pause)
        # Workers that outlive the run go on with its tasks, and are paid until they are taken over.
        if not self.soaked.workers():
            self.away += time.monotonic() - killed
        self.soaked.run.start()

    def check(self, processors: int, ended: float, found: Findings) -> None:
        """Check that no more is billed than the processors for the paid time, up to its end."""
        most = processors * (ended - self.began - self.away)
        found.need(found.billed <= most, f"{found.billed:.3f} s billed, {most:.3f} s alive at most")


class LocalRuns:
    """
    Target: ``bursar run`` on two to four processors of this machine.

    Parameters
    ----------
    start
        How the command is started.
    """

    name = "local"

    def __init__(self, start: Start = start_command) -> None:
        self.start = start

    @contextmanager
    def up(self, folder: Path) -> Iterator[None]:
        """Nothing is shared by these rounds."""
        yield

    def strike(self, folder: Path, rng: random.Random, found: Findings) -> None:
        """Kill the run and its workers a few times, and resume it; then look at everything."""
        processors = rng.randint(2, 4)
        sites = (
            f'[site.local]\nkind = "local"\nprocessors = {processors}\n'
            'unit_price = "3600 SU/core-hour"\n'
        )
        soaked = Soaked.lay_out(
            folder,
            sites,
            self.start,
            pieces=rng.randint(10, 40),
            step=rng.choice((0.002, 0.01, 0.03)),
            budget=2_000.0,
        )
        found.tasks = soaked.pieces + 1
        try:
            paid = PaidTime.start(soaked)
            for number in range(rng.randint(1, 4)):
                wait_for_moment(soaked, rng, number)
                what = rng.random()
                if what < 0.45:
                    kill_workers(soaked, rng, found, rng.random())
                if what > 0.3:
                    kill_run(soaked, found)
                    paid.resume(found, rng.choice((0.0, 0.0, rng.uniform(0.0, 1.0))))
            status = soaked.run.finish(PATIENCE)
            ended = time.monotonic()
            found.need(status == 0, f"exit status {status}: {soaked.run.said[-400:]}")
            bill = check_end(soaked, found)
            found.need(
                not found.overlapped, f"{found.overlapped} attempts went on beside the next one"
            )
        finally:
            soaked.run.close()
            kill_all(processes_of(folder))
        found.recorded = sum(task["processor_seconds"] for task in bill["tasks"])
        found.need(
            found.recorded <= found.billed + 1e-3,
            f"{found.billed:.3f} s billed, {found.recorded:.3f} s used by attempts",
        )
        paid.check(processors, ended, found)
