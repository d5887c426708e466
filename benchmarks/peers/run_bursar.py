"""Bursar: the dispatcher with its journal and two workers, as a run uses them."""

import asyncio
import tempfile
from pathlib import Path

from job import WORKERS, arguments, measure

from bursar.dispatch.journal import RunJournal
from bursar.dispatch.journal_records import AttemptRecord
from bursar.engine.core import RunPaths
from bursar.engine.dispatcher import Dispatcher
from bursar.model.campaign import Retry
from bursar.model.task import Exec, Task
from bursar.worker.launch import Endpoint, LocalWorkers
from bursar_devtools.unlimited_spending import UnlimitedSpending

RUN = "compare-dispatch"


def main() -> None:
    """One task for each command; a result counts when its journal entry is durable."""
    given = arguments()
    printed: list[str] = []

    def keep(record: AttemptRecord) -> None:
        printed.append(record.outcome.stdout.decode())

    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        room = Path(folder)
        folders = RunPaths(root=room, files=room / "files", work=room / "work", logs=room / "logs")
        for path in (folders.files, folders.work, folders.logs):
            path.mkdir()
        journal = RunJournal(room / "journal.sqlite")
        dispatcher = Dispatcher(
            (),
            journal=journal,
            guard=UnlimitedSpending(),
            retry=Retry(),
            folders=folders,
            run=RUN,
            on_outcome=keep,
        )
        workers = LocalWorkers("local", "lease-1", WORKERS, rigid=False, on_event=print)

        async def start() -> None:
            await dispatcher.start()
            await workers.start(
                Endpoint(address=dispatcher.address, token=dispatcher.token, run=RUN)
            )

        async def submit(numbers: list[int]) -> None:
            for number in numbers:
                name = f"{len(numbers)}-{number}"
                dispatcher.submit([Task(id=name, steps=(Exec(("/bin/echo", str(number))),))])
            await dispatcher.wait()

        async def stop() -> None:
            await dispatcher.close()
            await workers.release()

        def carry(numbers: list[int]) -> list[str]:
            printed.clear()
            runner.run(submit(numbers))
            return list(printed)

        runner.run(start())
        measure(carry, given.commands)
        runner.run(stop())
        journal.close()


if __name__ == "__main__":
    main()
