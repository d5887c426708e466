"""
Random edits between runs of a campaign, against a plain twin that reruns everything.

Decision, record, journal and the taking over of files are the product's; only the engine is
replaced, by a function that works results out on the spot. So the results of each run must be the
twin's, and what ran exactly the tasks whose definition, as the twin spells it out, differs.
"""

import asyncio
import hashlib
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thoroughness import examples

from bursar.api.reusing import reusing
from bursar.dispatch.journal import RunJournal
from bursar.dispatch.journal_records import AttemptRecord
from bursar.formats.campaign_file import read_campaign
from bursar.model.campaign import Campaign
from bursar.model.task import Outcome, Shell, Status
from bursar.runs.folder import RunFolder
from bursar.runs.reuse_store import ReuseRecorder

INPUTS = ("a.txt", "b.txt")
CODE = ("model.py", "lib/one.py", "lib/two.py")


class World:
    """A campaign's folder, the edits that its user makes, and the runs so far."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.runs = root / "runs"
        self.seeds = [1, 2, 3]
        self.flag = "--slow"
        self.level = "low"
        self.name = "fit"
        self.turned = False
        self.total = "all.out"
        for name in (*INPUTS, *CODE[:2]):
            self.put(name, "first")
        self.last: dict[str, tuple[Any, bytes]] = {}
        self.broken: set[str] = set()
        self.folder: RunFolder | None = None

    def put(self, name: str, text: str) -> None:
        """Write a file as an editor does."""
        path = self.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def campaign(self) -> Campaign:
        """Read the campaign that the file describes now."""
        tasks = [
            f'[tasks.{self.name}]\ncommand = "fit {self.flag} --seed {{seed}} > {{outputs}}"\n'
            'inputs = ["a.txt"]\noutputs = ["fit-{seed}.out"]\n'
            f'environment = {{ LEVEL = "{self.level}" }}\n',
            f'[tasks.mean]\nover = ["seed"]\ncommand = "mean {{inputs}}"\n'
            f'inputs = [{{ from = "{self.name}" }}]\noutputs = ["mean-{{seed}}.out"]\n',
            '[tasks.draw]\ncommand = "draw"\ninputs = ["b.txt", { from = "mean" }]\n'
            f'outputs = ["{self.total}"]\n',
        ]
        if self.turned:
            tasks.reverse()
        head = '[campaign]\nname = "c"\ncode = ["model.py", "lib/*"]\n'
        values = ", ".join(map(str, self.seeds))
        text = f"{head}[parameters]\nseed = [{values}]\n" + "".join(tasks)
        self.put("c.toml", text)
        return read_campaign(self.root / "c.toml")

    # Edits.

    def edit_file(self, name: str, text: str) -> None:
        """Change an input or code file, perhaps to what it was."""
        self.put(name, text)

    def touch(self, name: str) -> None:
        """Change only the time of a file."""
        if (self.root / name).exists():
            os.utime(self.root / name, (1.0, 1.0))

    def sweep(self, seeds: list[int]) -> None:
        """Add, remove and reorder points."""
        self.seeds = seeds

    def command(self, flag: str) -> None:
        """Change the command of all fits."""
        self.flag = flag

    def environment(self, level: str) -> None:
        """Change a variable of all fits."""
        self.level = level

    def rename(self, name: str) -> None:
        """Give a set of tasks another name, which changes no result."""
        self.name = name

    def declare(self, name: str) -> None:
        """Declare another output of a task whose command stays."""
        self.total = name

    def turn(self) -> None:
        """Turn the order of the tasks in the file round."""
        self.turned = not self.turned

    def spoil(self, which: int, how: str) -> None:
        """Delete an output of the last run, or change it to another of the same size."""
        names = sorted(self.last)
        if not names or self.folder is None:
            return
        path = self.folder.files / names[which % len(names)]
        if how == "delete":
            path.unlink(missing_ok=True)
        elif path.exists():
            # Neither size nor time tells.
            stat = path.stat()
            path.write_bytes(b"x" * stat.st_size)
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        self.broken.add(path.name)

    # The twin.

    def twin(self, campaign: Campaign) -> dict[int, tuple[Any, bytes]]:
        """Return the definition of each task, spelt out, and its result, all worked out anew."""
        workflow = campaign.workflow
        code = [(n, (self.root / n).read_bytes()) for n in CODE if (self.root / n).exists()]
        makers = {file.name: i for i, t in enumerate(workflow.tasks) for file in t.outputs}
        found: dict[int, tuple[Any, bytes]] = {}
        for number in workflow.order:
            task = workflow.tasks[number]
            (step,) = task.steps
            assert isinstance(step, Shell)
            reads = tuple(
                (f.name, found[makers[f.name]])
                if f.name in makers
                else (f.name, (self.root / f.name).read_bytes())
                for f in sorted(task.inputs, key=lambda f: f.name)
            )
            makes = tuple(sorted(f.name for f in task.outputs))
            environment = tuple(sorted(task.environment.items()))
            definition = (step.line, environment, reads, makes, tuple(code))
            result = hashlib.sha256(repr(definition).encode()).hexdigest().encode()
            found[number] = definition, result
        return found

    # A run.

    def carry_out(self, only: Callable[[Sequence[int]], bool]) -> tuple[set[int], set[int]]:
        """
        Run the campaign; tasks that are not among ``only`` fail, and those after them.

        Returns
        -------
        tuple
            Tasks that were to run, and tasks whose definition differs by the twin.
        """
        campaign = self.campaign()
        workflow = campaign.workflow
        twin = self.twin(campaign)
        ahead = reusing(campaign, self.runs)

        expected: set[int] = set()
        for number in workflow.order:
            definition = twin[number][0]
            (made,) = (file.name for file in workflow.tasks[number].outputs)
            there = made in self.last and self.last[made][0] == definition
            if not there or made in self.broken or expected & {*workflow.parents[number]}:
                expected.add(number)
        assert ahead.reuse is not None
        assert set(ahead.reuse.decision.reruns) == (expected if self.folder else set())

        count = len(list(self.runs.glob("*")))
        with RunFolder.create(
            self.runs, campaign, (), argv=[], name=f"run-{count}", reused=ahead.origin
        ) as folder:
            ahead.take_over(folder)
        done = set(range(len(workflow.tasks))) - expected
        records = []
        for position, number in enumerate(i for i in workflow.order if i in expected):
            task = workflow.tasks[number]
            lives = only([position]) and done.issuperset(workflow.parents[number])
            status = Status.SUCCEEDED if lives else Status.FAILED
            if lives:
                done.add(number)
                (folder.files / task.outputs[0].name).write_bytes(twin[number][1])
            outcome = Outcome(task=number, attempt=1, status=status)
            records.append(AttemptRecord(outcome, True, "here", "lease-1"))
        journal = RunJournal(folder.journal_file, durable=False)
        journal.commit(records)
        journal.close()
        asyncio.run(_record(folder, campaign, records))

        self.last = {}
        for number in sorted(done):
            name = workflow.tasks[number].outputs[0].name
            assert (folder.files / name).read_bytes() == twin[number][1]
            self.last[name] = twin[number]
        self.folder, self.broken = folder, set()
        info = folder.read_info()
        info.created = float(count)  # the latest run is known by it, and these come in a moment
        folder.write_info(info)
        return set(ahead.reuse.left), expected


async def _record(folder: RunFolder, campaign: Campaign, records: list[AttemptRecord]) -> None:
    recorder = ReuseRecorder(folder, campaign)
    for record in records:
        recorder.take_in(record)
    await recorder.batches.flush()


TEXTS = st.sampled_from(["first", "other", "third"])
EDITS = st.one_of(
    st.tuples(st.just("edit_file"), st.sampled_from([*INPUTS, *CODE]), TEXTS),
    st.tuples(st.just("touch"), st.sampled_from([*INPUTS, *CODE])),
    st.tuples(st.just("sweep"), st.lists(st.integers(1, 6), min_size=1, max_size=5, unique=True)),
    st.tuples(st.just("command"), st.sampled_from(["--slow", "--fast"])),
    st.tuples(st.just("environment"), st.sampled_from(["low", "high"])),
    st.tuples(st.just("rename"), st.sampled_from(["fit", "try"])),
    st.tuples(st.just("turn")),
    st.tuples(st.just("declare"), st.sampled_from(["all.out", "total.out"])),
    st.tuples(st.just("spoil"), st.integers(0, 20), st.sampled_from(["delete", "change"])),
)
STEPS = st.lists(
    st.tuples(
        st.lists(EDITS, max_size=2),
        st.one_of(st.just(None), st.sets(st.integers(0, 10), max_size=3)),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=examples(60), deadline=None)
@given(STEPS)
def test_what_reruns_is_what_differs_and_all_results_are_those_of_a_rerun(
    steps: list[tuple[list[tuple[Any, ...]], set[int] | None]],
) -> None:
    """Edits of files, times, parameters, order, names, commands, code, results; failures, too."""
    with tempfile.TemporaryDirectory() as place:
        world = World(Path(place).resolve())
        ran, expected = world.carry_out(lambda positions: True)
        assert ran == expected
        for edits, failing in steps:
            for edit, *values in edits:
                getattr(world, edit)(*values)
            fails = failing or set()
            ran, expected = world.carry_out(fails.isdisjoint)
            assert ran == expected


def test_twins_are_reused_once_each(tmp_path: Path) -> None:
    """Ten repetitions of one command are ten draws: five more of them run, none is copied."""
    campaign = tmp_path / "c.toml"
    text = '[campaign]\ncommand = "draw"\n[parameters]\n'
    text += "repetition = {{ from = 1, to = {}, step = 1 }}\n"
    text += '[task]\nover = ["repetition"]\n'
    campaign.write_text(text.format(10))
    first = read_campaign(campaign)
    ahead = reusing(first, tmp_path / "runs")
    with RunFolder.create(tmp_path / "runs", first, (), argv=[], name="one") as folder:
        ahead.take_over(folder)
    records = [
        AttemptRecord(Outcome(task=i, attempt=1, status=Status.SUCCEEDED), True, "here", "lease-1")
        for i in range(10)
    ]
    journal = RunJournal(folder.journal_file, durable=False)
    journal.commit(records)
    journal.close()
    asyncio.run(_record(folder, first, records))

    campaign.write_text(text.format(15))
    again = reusing(read_campaign(campaign), tmp_path / "runs").reuse

    assert again is not None
    assert len(again.decision.reused) == 10
    assert max(Counter(again.decision.reused.values()).values()) == 1
    assert len(again.left) == 5
