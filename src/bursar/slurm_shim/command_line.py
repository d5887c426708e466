"""The stand-ins' command lines: options in Slurm's words, answers in Slurm's form."""

import argparse
import asyncio
import os
import pwd
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from bursar.formats.job_files.slurm_script import SRUN_SCRIPT
from bursar.model.errors import BursarError, InputError
from bursar.remote.messages import TaskSpec
from bursar.slurm_shim import accounting, listing
from bursar.slurm_shim.dependencies import AFTERNOTOK, settled
from bursar.slurm_shim.job_book import MOST_AGE, JobBook
from bursar.slurm_shim.job_documents import job_documents
from bursar.slurm_shim.jobs import UNENDED, JobElement
from bursar.slurm_shim.running_jobs import parse_signal_number, read_running
from bursar.slurm_shim.selecting import (
    JobFilter,
    JobRange,
    parse_jobs,
    parse_moment,
    parse_states,
)
from bursar.slurm_shim.service_link import ShimLink, connected
from bursar.slurm_shim.shim_folder import REFUSED, ShimFolder
from bursar.slurm_shim.submitting import facts_of, read_submission, specs_of_job

T = TypeVar("T")

VERSION = "24.05.0"
"""Version of Slurm whose manuals the stand-ins follow."""

FAILED = 1
"""Exit status of a command that could not do what it was asked, as Slurm's have it."""

_ORDER = {state: position for position, state in enumerate(UNENDED)}
_POLL = 1.0  # seconds between two looks of sbatch --wait


def main(words: Sequence[str]) -> int:
    """
    Run a stand-in and return its exit status.

    Parameters
    ----------
    words
        Folder of the stand-ins, the command's name, and its command line.
    """
    folder, name, *rest = words
    if rest[:1] in (["--version"], ["-V"]):
        print(f"slurm {VERSION}")
        return 0
    try:
        return _COMMANDS[name](ShimFolder(Path(folder)), rest)
    except _UnknownJob:
        print("slurm_load_jobs error: Invalid job id specified", file=sys.stderr)
        return FAILED
    except BursarError as error:
        for line in str(error).splitlines():
            print(f"{name}: error: {line.removeprefix(f'{name}: ')}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # a reader such as head has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


class _UnknownJob(Exception):
    """None of the jobs that were named is known."""


class _CommandParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(message)


def _parser(*options: tuple[str, ...], flags: Sequence[tuple[str, ...]] = ()) -> _CommandParser:
    """Return a parser of options with values, each a list, and of flags."""
    parser = _CommandParser(add_help=False, allow_abbrev=False)
    for names in options:
        parser.add_argument(*names, action="append")
    for names in flags:
        parser.add_argument(*names, action="store_true")
    return parser


def _parsed(parser: _CommandParser, words: Sequence[str]) -> argparse.Namespace:
    # Options may stand anywhere, as in "show jobid -dd 5".
    found, unknown = parser.parse_known_intermixed_args(words)
    if unknown:
        name = unknown[0].partition("=")[0]
        what = "is not honoured" if name.startswith("-") else "is not expected"
        raise InputError(f"{name} {what}")
    if getattr(found, "clusters", None) and set(found.clusters) - {"all", "bursar"}:
        raise InputError(f"there is no cluster {found.clusters[0]}", where="--clusters")
    return found


def _listed(values: Sequence[str] | None) -> set[str] | None:
    """Return the words of options that may be given several times, with commas."""
    return None if values is None else {w.strip() for v in values for w in v.split(",")}


def _last(values: Sequence[str] | None, otherwise: str = "") -> str:
    return values[-1] if values else otherwise


def _ranges(values: Sequence[str] | None, where: str) -> list[JobRange] | None:
    return None if values is None else parse_jobs(",".join(values), where)


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container knows numbers only
        return str(os.getuid())


def _users(values: Sequence[str] | None) -> set[str] | None:
    """Return names of users, who may be named by their numbers."""
    own = {str(os.getuid()): _user()}
    found = _listed(values)
    return None if found is None else {own.get(name, name) for name in found}


def _with_service(
    folder: ShimFolder, work: Callable[[JobBook, ShimLink], Coroutine[Any, Any, T]]
) -> T:
    """Return the result of work on the book at the service."""

    async def run() -> T:
        async with connected(folder, book) as link:
            return await work(book, link)

    folder.settings()
    book = JobBook(folder.book)
    try:
        return asyncio.run(run())
    finally:
        book.close()


async def _current(link: ShimLink) -> None:
    """Hand over what is left of earlier commands, and read what became of all jobs."""
    await link.deliver()
    await link.refresh()


def _print(lines: Sequence[str]) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


# sbatch.


def _sbatch(folder: ShimFolder, words: Sequence[str]) -> int:
    script = read_submission(words, os.environ, Path.cwd(), sys.stdin.read)
    options = script.job.options

    async def submit(book: JobBook, link: ShimLink) -> int:
        if "dependency" in options:
            await _current(link)

        def make_specs(number: int) -> list[TaskSpec]:
            return specs_of_job(script, number, folder.running)

        facts = facts_of(script, _user(), book.elements)
        job = book.add(facts, script.indices, make_specs, time.time())
        try:
            await link.deliver()
        except BaseException:
            # The job may have arrived all the same: the next command sees to it.
            book.give_up(job)
            raise
        if "parsable" in options:
            _print([str(job)])
        elif "quiet" not in options:
            _print([f"Submitted batch job {job}"])
        return await _waited(book, link, job) if "wait" in options else 0

    return _with_service(folder, submit)


async def _waited(book: JobBook, link: ShimLink, job: int) -> int:
    """Return the largest exit status of a job's elements, once they have ended."""
    while True:
        await link.refresh()
        elements = book.elements([job])
        if all(element.has_ended for element in elements):
            break
        await asyncio.sleep(_POLL)
    return max(
        0 if e.state == "COMPLETED" else e.exit_code if 0 < e.exit_code < 256 else FAILED
        for e in elements
    )


# squeue.


def _squeue(folder: ShimFolder, words: Sequence[str]) -> int:
    parser = _parser(
        ("-j", "--jobs", "--job"),
        ("-u", "--user", "--users"),
        ("-n", "--name"),
        ("-p", "--partition"),
        ("-A", "--account"),
        ("-t", "--states", "--state"),
        ("-o", "--format"),
        ("-O", "--Format"),
        ("-M", "--clusters"),
        ("-S", "--sort"),
        flags=(
            ("--start",), ("--json",),
            ("-h", "--noheader"), ("-l", "--long"), ("-r", "--array"), ("-a", "--all"),
            ("--me",), ("-v", "--verbose"), ("--local",),
        ),
    )  # fmt: skip
    # A value that begins with a dash, as in "-S -t,i", would be taken for an option.
    joined: list[str] = []
    for word in words:
        if joined[-1:] in (["-S"], ["--sort"]):
            joined[-1] = f"--sort={word}"
        else:
            joined.append(word)
    found = _parsed(parser, joined)
    if found.Format:
        columns = listing.parse_squeue_names(found.Format[-1])
    else:
        usual = os.environ.get("SQUEUE_FORMAT", listing.SHORT)
        usual = listing.START if found.start else usual
        usual = listing.LONG if found.long else usual
        columns = listing.parse_squeue_format(_last(found.format, usual))
    wanted = _ranges(found.jobs, "--jobs")
    states = parse_states(",".join(found.states), "--states") if found.states else UNENDED
    which = JobFilter(
        jobs=wanted,
        names=_listed(found.name),
        users={_user()} if found.me else _users(found.user),
        partitions=_listed(found.partition),
        accounts=_listed(found.account),
        states=states,
    )

    async def ask(book: JobBook, link: ShimLink) -> list[JobElement]:
        await _current(link)
        known = book.elements(ended_since=time.time() - MOST_AGE)
        if wanted is not None and not any(one.holds(e) for one in wanted for e in known):
            raise _UnknownJob
        return [element for element in known if which.holds(element)]

    # As Slurm's: those that wait, those that run, and then the others.
    elements = sorted(_with_service(folder, ask), key=lambda one: _ORDER.get(one.state, 2))
    if found.sort:
        elements = listing.sorted_elements(elements, found.sort[-1])
    lines = listing.listed(elements, time.time(), os.getuid(), gather=not found.array)
    if found.json:
        _print([job_documents(lines, VERSION)])
        return 0
    if found.long and not found.noheader:
        _print([time.strftime("%a %b %d %H:%M:%S %Y")])
    _print(listing.squeue_lines(columns, lines, header=not found.noheader))
    return 0


# sacct.


def _sacct(folder: ShimFolder, words: Sequence[str]) -> int:
    parser = _parser(
        ("-j", "--jobs", "--job"),
        ("-u", "--user", "--uid"),
        ("--name",),
        ("-r", "--partition"),
        ("-A", "--accounts", "--account"),
        ("-s", "--state"),
        ("-o", "--format", "--fields"),
        ("-S", "--starttime"),
        ("-E", "--endtime"),
        ("--delimiter",),
        ("-M", "--clusters"),
        flags=(
            ("-n", "--noheader"), ("-P", "--parsable2"), ("-p", "--parsable"),
            ("-X", "--allocations"), ("-b", "--brief"), ("-a", "--allusers"),
            ("-D", "--duplicates"), ("-L", "--allclusters"), ("--array",), ("--noconvert",),
            ("-v", "--verbose"),
        ),
    )  # fmt: skip
    found = _parsed(parser, words)
    usual = (
        accounting.BRIEF if found.brief else os.environ.get("SACCT_FORMAT", accounting.ACCOUNTED)
    )
    fields = accounting.parse_sacct_format(",".join(found.format or [usual]))
    wanted = _ranges(found.jobs, "--jobs")
    now = time.time()
    since = _last(found.starttime, "midnight" if wanted is None else "now-100000d")
    start = parse_moment(since, "--starttime", now)
    end = parse_moment(_last(found.endtime, "now"), "--endtime", now)
    which = JobFilter(
        jobs=wanted,
        names=_listed(found.name),
        users=None if found.allusers else _users(found.user),
        partitions=_listed(found.partition),
        accounts=_listed(found.accounts),
        states=parse_states(",".join(found.state), "--state") if found.state else None,
    )

    async def ask(book: JobBook, link: ShimLink) -> list[JobElement]:
        await _current(link)
        jobs = None if wanted is None else {one.job for one in wanted}
        known = book.elements(jobs, ended_since=start)
        return [e for e in known if which.holds(e) and e.submitted <= max(end, now)]

    lines = listing.listed(
        _with_service(folder, ask), time.time(), os.getuid(), gather=not found.array
    )
    _print(
        accounting.sacct_lines(
            fields,
            lines if found.allocations else accounting.with_steps(lines),
            header=not found.noheader,
            parsable=found.parsable or found.parsable2,
            delimiter=_last(found.delimiter, "|"),
            trailing=found.parsable,
        )
    )
    return 0


# scancel.


def _scancel(folder: ShimFolder, words: Sequence[str]) -> int:
    parser = _parser(
        ("-u", "--user"),
        ("-n", "--name", "--jobname"),
        ("-p", "--partition"),
        ("-A", "--account"),
        ("-t", "--state"),
        ("-s", "--signal"),
        ("-M", "--clusters"),
        flags=(
            ("-Q", "--quiet"), ("-v", "--verbose"), ("-f", "--full"), ("-b", "--batch"), ("--me",),
        ),
    )  # fmt: skip
    parser.add_argument("jobs", nargs="*")
    found = _parsed(parser, words)
    number = parse_signal_number(_last(found.signal, "KILL"))
    ends = number == signal.SIGKILL
    wanted = _ranges(found.jobs or None, "scancel")
    which = JobFilter(
        jobs=wanted,
        names=_listed(found.name),
        users={_user()} if found.me else _users(found.user),
        partitions=_listed(found.partition),
        accounts=_listed(found.account),
        states=parse_states(",".join(found.state), "--state") if found.state else None,
    )
    if which == JobFilter():
        raise InputError("No job identification provided")

    async def cancel(book: JobBook, link: ShimLink) -> int:
        await _current(link)
        jobs = None if wanted is None else {one.job for one in wanted}
        known = book.elements(jobs)
        chosen = [e for e in known if which.holds(e) and not e.has_ended]
        said = []
        if ends:
            await link.cancel(chosen)
        else:
            said = [_signalled(folder, element, number, found) for element in chosen]
        status = FAILED if any(said) else 0
        for line in filter(None, said if not found.quiet else ()):
            print(f"scancel: error: {line}", file=sys.stderr)
        for one in wanted or ():
            # As Slurm's: a job that is to end and is not known has ended.
            if not ends and not any(one.holds(element) for element in known):
                status = FAILED
                if not found.quiet:
                    print(
                        f"scancel: error: Kill job error on job id {one.word}: "
                        "Invalid job id specified",
                        file=sys.stderr,
                    )
        return status

    return _with_service(folder, cancel)


def _signalled(
    folder: ShimFolder, element: JobElement, number: int, found: argparse.Namespace
) -> str:
    """Send a signal to an element; return what is wrong, empty: nothing is."""
    job = read_running(folder.running_file(element.number))
    if element.state != "RUNNING" or job is None:
        return f"Kill job error on job id {element.id}: Job can not be altered now"
    if not job.is_here:
        return f"job {element.id} runs on {job.host}, and signals reach jobs of this machine only"
    job.send(number, to="all" if found.full else "script" if found.batch else "steps")
    return ""


# scontrol.


def _scontrol(folder: ShimFolder, words: Sequence[str]) -> int:
    parser = _parser(
        ("-M", "--clusters"),
        flags=(
            ("-o", "--oneliner"), ("-d", "--details"), ("-a", "--all"), ("-Q", "--quiet"),
            ("-v", "--verbose"), ("--json",),
        ),
    )  # fmt: skip
    parser.add_argument("words", nargs="*")
    found = _parsed(parser, words)
    said = [part for word in found.words for part in word.split("=", 1)]
    if said[:1] == ["version"]:
        _print([f"slurm {VERSION}"])
        return 0
    if said[:1] == ["show"] and said[1:2] in (["hostnames"], ["hostname"]):
        return _hostnames(said[2:])
    if said[:1] == ["requeue"] and said[1:]:
        return _requeue(folder, ",".join(said[1:]))
    if said[:1] != ["show"] or said[1:2] not in (["job"], ["jobs"], ["jobid"]):
        raise InputError(
            f"{' '.join(said[:2]) or 'scontrol'} is not honoured, only: show job, requeue"
        )
    wanted = _ranges(said[2:] or None, "show job")

    async def ask(book: JobBook, link: ShimLink) -> list[JobElement]:
        await _current(link)
        known = book.elements(ended_since=time.time() - MOST_AGE)
        return [e for e in known if wanted is None or any(one.holds(e) for one in wanted)]

    elements = _with_service(folder, ask)
    if not elements:
        if wanted is None:
            _print(["No jobs in the system"])
            return 0
        raise _UnknownJob
    lines = listing.listed(elements, time.time(), os.getuid())
    if found.json:
        _print([job_documents(lines, VERSION)])
        return 0
    _print([accounting.job_record(line, one_line=found.oneliner) for line in lines])
    return 0


def _requeue(folder: ShimFolder, words: str) -> int:
    wanted = parse_jobs(words, "requeue")
    # A job that asks for its own end has to hear the answer before it ends.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

    async def requeue(book: JobBook, link: ShimLink) -> int:
        await _current(link)
        known = book.elements({one.job for one in wanted})
        status = 0
        for one in wanted:
            chosen = [element for element in known if one.holds(element)]
            problem = "" if chosen else "Invalid job id specified"
            for element in chosen:
                if element.state == "PENDING":
                    problem = "Job is pending execution"
                elif not element.facts.requeues or not book.has_specs(element.job):
                    problem = "Requested operation is presently disabled"
                else:
                    await link.requeue(element)
            if problem:
                print(f"{problem} for job {one.word}", file=sys.stderr)
                status = FAILED
        return status

    return _with_service(folder, requeue)


def _hostnames(words: Sequence[str]) -> int:
    from bursar.provisioning.lrm.command_adapter import expand_hostlist

    names = ",".join(words) or os.environ.get("SLURM_JOB_NODELIST", "")
    _print(list(expand_hostlist(names)))
    return 0


# sinfo.


def _sinfo(folder: ShimFolder, words: Sequence[str]) -> int:
    parser = _parser(
        ("-o", "--format"),
        ("-p", "--partition"),
        ("-M", "--clusters"),
        ("-t", "--states"),
        ("-n", "--nodes"),
        flags=(
            ("-h", "--noheader"), ("-s", "--summarize"), ("-N", "--Node"), ("-a", "--all"),
            ("-v", "--verbose"),
        ),
    )  # fmt: skip
    found = _parsed(parser, words)

    async def ask(book: JobBook, link: ShimLink) -> accounting.SiteLine:
        await _current(link)
        site = await link.site()
        return accounting.SiteLine(
            name=site.name,
            partition=_last(found.partition, "bursar"),
            processors=site.processors,
            used=sum(e.facts.processors for e in book.elements() if e.state == "RUNNING"),
            memory=site.memory,
        )

    site = _with_service(folder, ask)
    usual = accounting.BY_NODE if found.Node else accounting.NODES
    usual = accounting.SUMMARY if found.summarize else usual
    text = _last(found.format, os.environ.get("SINFO_FORMAT", usual))
    states, nodes = _listed(found.states), _listed(found.nodes)
    is_meant = site.is_in(states) and (nodes is None or site.name in nodes)
    _print(accounting.sinfo_lines(text, [site] if is_meant else [], header=not found.noheader))
    return 0


# srun, and commands that have no stand-in.


def _srun(folder: ShimFolder, words: Sequence[str]) -> int:
    if "BURSAR_STEPS" not in os.environ:
        raise InputError("starts steps within jobs only: sbatch --wait runs a script")
    os.execv("/bin/sh", ("/bin/sh", "-c", SRUN_SCRIPT, "srun", *words))


def _afternotok(folder: ShimFolder, words: Sequence[str]) -> int:
    """Tell a gate whether all of some elements have failed; see the module of dependencies."""

    async def ask(book: JobBook, link: ShimLink) -> int:
        await link.refresh()
        elements = book.elements(map(int, words), exactly=True)
        return 0 if all(settled("afternotok", one) for one in elements) else FAILED

    return _with_service(folder, ask)


def _refused(name: str) -> Callable[[ShimFolder, Sequence[str]], int]:
    def refuse(folder: ShimFolder, words: Sequence[str]) -> int:
        raise InputError(f"has no stand-in here; {REFUSED[name]}")

    return refuse


_COMMANDS: Mapping[str, Callable[[ShimFolder, Sequence[str]], int]] = {
    "sbatch": _sbatch,
    "scancel": _scancel,
    "scontrol": _scontrol,
    "sinfo": _sinfo,
    "sacct": _sacct,
    "squeue": _squeue,
    "srun": _srun,
    AFTERNOTOK: _afternotok,
    **{name: _refused(name) for name in REFUSED},
}
