"""
Actions of the page, carried out by the command ``bursar`` in a process of its own.

So an action does what the command of its name does, with the same checks and the same messages,
and a plan that takes long does not hold the page up.
"""

import asyncio
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from bursar.model.errors import BursarError, InputError
from bursar.report.run_report import data_of_page

PATIENCE = 600.0
"""Seconds that a command may take."""

MOST_TEXT = 20_000_000
"""Bytes of a campaign file that is pasted or uploaded."""

SUFFIXES = (".toml", ".pln", ".jdl", ".json", ".xml")
"""Ends of the names of campaign files."""


class GoalChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    Another goal for a run, in the words of ``bursar amend``.

    Parameters
    ----------
    deadline, budget
        As for the command: ``"2h"``, ``"+1h"``; ``"40 SU"``, ``"+5"``; empty: as it is.
    dry_run
        Whether to say only what would come of the change.
    """

    deadline: str = ""
    budget: str = ""
    dry_run: bool = False


class RetriedTasks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Failed tasks to run again, by id; empty: all."""

    tasks: list[str] = []


class AddedSiteNames(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    Sites that a run is to use as well.

    Parameters
    ----------
    file
        Path of the sites file.
    sites
        Names of sites in the file; empty: all.
    """

    file: str
    sites: list[str] = []


class LabelChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tags to give and to take away, and a note; None: as it is."""

    add: list[str] = []
    remove: list[str] = []
    note: str | None = None


class NewCampaign(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    A campaign to plan or to run.

    Parameters
    ----------
    text
        Content of the campaign file.
    name
        Name of the file, whose end says its format.
    folder
        Folder that the file's paths begin in; empty: that of the dashboard's process.
    sites
        Sites file; empty: this machine alone.
    deadline, budget, confidence
        As for ``bursar plan``; empty: those of the campaign.
    accept
        Kind of the counter-offer that is taken where the goal is out of reach, as for ``bursar
        run``; empty: none is.
    """

    text: str
    name: str = "campaign.toml"
    folder: str = ""
    sites: str = ""
    deadline: str = ""
    budget: str = ""
    confidence: str = ""
    accept: Literal["", "time", "budget", "share"] = ""


class OutOfReach(BursarError):
    """
    A run was not begun, since its goal is out of reach.

    Attributes
    ----------
    quote
        What ``bursar run --json`` answered: the goal, the reason, and ``counter_offers``.
    """

    def __init__(self, quote: Mapping[str, Any]) -> None:
        super().__init__(str(quote["reason"]))
        self.quote = quote


class PageCommands:
    """
    Carries out what the page asks for.

    Parameters
    ----------
    runs
        Folder that holds the runs.
    """

    def __init__(self, runs: Path) -> None:
        self._runs = runs

    async def amend(self, run: str, asked: GoalChange) -> Any:
        """Change a run's goal, or say what would come of the change."""
        options = _stated(deadline=asked.deadline, budget=asked.budget)
        return await self._of_run("amend", run, *options, *["--dry-run"] * asked.dry_run)

    async def stop(self, run: str) -> Any:
        """Stop a run as Ctrl-C does; it can be resumed."""
        return await self._of_run("stop", run)

    async def cancel(self, run: str) -> Any:
        """Cancel a run for good."""
        return await self._of_run("cancel", run)

    async def add_sites(self, run: str, asked: AddedSiteNames) -> Any:
        """
        Let a run that goes on use further sites.

        Raises
        ------
        InputError
            When the run refuses one of them.
        """
        if not asked.file:
            raise InputError("expected the path of a sites file", where="file")
        options = _stated(sites=asked.file)
        answer = await self._of_run("add-site", run, *options, "--", *asked.sites)
        if answer["refused"]:
            said = [f"{site}: {reason}" for site, reason in answer["refused"].items()]
            raise InputError("; ".join(said))
        return answer

    async def resume(self, run: str) -> Any:
        """Go on with a run, without a terminal."""
        options = ("--runs", str(self._runs), "--detach", "--json")
        return await _bursar("run", "--resume", run, *options)

    async def retry(self, run: str, asked: RetriedTasks) -> Any:
        """Run failed tasks again, without a terminal."""
        return await self._of_run("retry", run, "--detach", "--", *asked.tasks)

    async def label(self, run: str, asked: LabelChange) -> Any:
        """Change tags and note of a run."""
        options = [part for tag in asked.remove for part in ("--remove", tag)]
        if asked.note is not None:
            options += ["--note", asked.note]
        return await self._of_run("tag", run, *options, "--", *asked.add)

    async def compare(self, first: str, second: str) -> Any:
        """Compare two runs."""
        return await self._of_run("compare", first, second)

    async def sites(self, file: str) -> Any:
        """Return the sites of a file, empty: this machine, with waits and prices."""
        return await _bursar("sites", *_stated(sites=file), "--json")

    async def accounts(self) -> Any:
        """Return the accounts of the ledger's book; None: there is no book."""
        try:
            return await _bursar("ledger", "accounts", "--json")
        except InputError:
            return None

    async def statement(self, account: str) -> Any:
        """Return an account's statement."""
        return await _bursar("ledger", "statement", "--json", "--", account)

    async def forecasts(self) -> Any:
        """Return how forecasts of runs came out."""
        return await _bursar("forecasts", "--json")

    async def plan(self, asked: NewCampaign) -> Any:
        """
        Return the page of the plan of a campaign.

        The answer has the fields of :meth:`bursar.report.run_report.ReportContent.to_page`.
        """
        with _CampaignFile(asked) as file:
            page = file.path.with_suffix(".page.html")
            try:
                await _bursar(
                    "plan", str(file.path), "--html", str(page), *_planned(asked), "--json"
                )
                return data_of_page(page.read_text(encoding="utf-8"))
            finally:
                page.unlink(missing_ok=True)

    async def run(self, asked: NewCampaign) -> Any:
        """
        Begin a run of a campaign, without a terminal, and return its summary.

        The campaign's file is kept beside its paths, as other commands look there later.

        Raises
        ------
        OutOfReach
            When the goal is out of reach, and no counter-offer was accepted in its place.
        """
        with _CampaignFile(asked) as file:
            kept = file.keep()
        options = ("--runs", str(self._runs), "--detach", "--json", *_stated(accept=asked.accept))
        answer = await _bursar("run", str(kept), *_planned(asked), *options)
        if "run" not in answer and answer.get("feasible") is False:
            raise OutOfReach(answer)
        return answer

    async def _of_run(self, command: str, run: str, *options: str) -> Any:
        # Names of runs never begin with a dash.
        return await _bursar(command, run, "--runs", str(self._runs), "--json", *options)


class _CampaignFile:
    """A campaign's text as a file that is deleted afterwards, in the folder of its paths."""

    def __init__(self, asked: NewCampaign) -> None:
        suffix = Path(asked.name).suffix
        if suffix not in SUFFIXES:
            expected = ", ".join(SUFFIXES)
            raise InputError(f'expected a name that ends in {expected}, got "{asked.name}"')
        self._name = Path(asked.name).name
        folder = Path(asked.folder or ".")
        if not folder.is_dir():
            raise InputError("is no folder", where=str(folder))
        stem = "".join(c for c in Path(asked.name).stem if c.isalnum() or c in "-_")[:60]
        try:
            number, name = tempfile.mkstemp(suffix, f".{stem or 'campaign'}-", folder)
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror}", where=str(folder)) from None
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(asked.text)
        self.path = Path(name)

    def keep(self) -> Path:
        """Keep the file under the name that was asked for, or a number behind; return its path."""
        wanted = Path(self._name)
        for number in range(1, 1000):
            stem = wanted.stem if number == 1 else f"{wanted.stem}-{number}"
            path = self.path.with_name(stem + wanted.suffix)
            try:
                os.link(self.path, path)
            except FileExistsError:
                if path.is_file() and path.read_bytes() == self.path.read_bytes():
                    return path
            except OSError as error:
                raise InputError(f"cannot be written: {error.strerror}", where=str(path)) from None
            else:
                return path
        raise InputError("there are too many files of this name", where=str(wanted))

    def __enter__(self) -> "_CampaignFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.path.unlink(missing_ok=True)


def _planned(asked: NewCampaign) -> Sequence[str]:
    return _stated(
        sites=asked.sites,
        deadline=asked.deadline,
        budget=asked.budget,
        confidence=asked.confidence,
    )


def _stated(**options: str) -> list[str]:
    """Return options of the command that are not empty; an ``=`` keeps dashes of values apart."""
    return [f"--{name}={value}" for name, value in options.items() if value]


async def _bursar(*words: str) -> Any:
    """
    Run a command and return the JSON that it prints.

    Raises
    ------
    InputError
        When the command refuses its input, in its own words.
    BursarError
        When the command fails, or takes longer than :data:`PATIENCE`.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "bursar", *words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(PATIENCE):
            said, complained = await process.communicate()
    except BaseException as error:
        if process.returncode is None:
            process.kill()
            await process.wait()
        if isinstance(error, TimeoutError):
            raise BursarError(f"bursar {words[0]} took longer than {PATIENCE:.0f} s") from None
        raise
    status = process.returncode or 0
    # Exit statuses above 2 are answers, too: a deadline out of reach, a run that failed.
    try:
        answer: Any = msgspec.json.decode(said) if said.strip() else None
    except msgspec.MsgspecError:
        answer = None
    if status == 0 or answer is not None:
        return answer
    line = _complaint(complained.decode(errors="replace"))
    raise (InputError if status == 2 else BursarError)(line or f"bursar {words[0]} failed")


def _complaint(text: str) -> str:
    """Return a command's complaint and its hint on one line, without the command's name."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    begin = next((i for i in reversed(range(len(lines))) if lines[i].startswith("bursar")), 0)
    return "; ".join(lines[begin:]).removeprefix("bursar: ")
