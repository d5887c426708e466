"""``bursar map``: a command for each of many arguments, in the words of GNU parallel."""

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bursar.cli.options import (
    RUNS,
    Budget,
    Confidence,
    Deadline,
    HistoryFile,
    RunsFolder,
    Runtime,
    SitesPath,
    TradeOff,
    parsed,
    print_note,
)
from bursar.model.errors import InputError

if TYPE_CHECKING:
    from bursar.api.run_result import RunResult
    from bursar.formats.command_lists.command_campaign import CommandNeeds, ListedCommand
    from bursar.formats.command_lists.halting import HaltRule
    from bursar.formats.command_lists.input_sources import InputRules
    from bursar.formats.command_lists.job_log import LoggedJob

INPUT = "Values"
OUTPUT = "Output"
JOBS = "Jobs"

MOST_JOBS = 4096
"""Jobs at a time on this machine, at most: each is a process."""


def register_map(app: typer.Typer) -> None:
    """Add ``bursar map`` to the command line."""
    # The first word that is no option begins the command, whose options are its own.
    settings = {"allow_interspersed_args": False, "ignore_unknown_options": True}
    app.command("map", context_settings=settings)(map_command)


def map_command(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[COMMAND] [::: VALUES | :::: FILES]",
            help="Command with {} {.} {/} {//} {/.} {#} {1} {2.} for values, and the values: "
            "::: states them, :::: names files of lines (- for standard input); :::+ and "
            "::::+ link to the source before. Without a source they are read from standard "
            "input; without a command each value is one.",
            show_default=False,
        ),
    ] = None,
    arg_file: Annotated[
        list[str] | None,
        typer.Option(
            "--arg-file",
            "-a",
            metavar="FILE",
            help="Read values from a file, as ::::.",
            rich_help_panel=INPUT,
        ),
    ] = None,
    colsep: Annotated[
        str | None,
        typer.Option(
            "--colsep",
            "-C",
            metavar="REGEX",
            help="Split each value into columns {1}, {2}, ...",
            rich_help_panel=INPUT,
        ),
    ] = None,
    header: Annotated[
        str | None,
        typer.Option(
            metavar=":",
            help="The first line names the columns: {name}. Only : is known.",
            rich_help_panel=INPUT,
        ),
    ] = None,
    max_args: Annotated[
        int | None,
        typer.Option(
            "--max-args",
            "-n",
            "-N",
            min=0,
            metavar="N",
            help="Values that one job takes.",
            rich_help_panel=INPUT,
        ),
    ] = None,
    link: Annotated[
        bool,
        typer.Option(
            "--link",
            help="Take one value of each source, and not all combinations.",
            rich_help_panel=INPUT,
        ),
    ] = False,
    null: Annotated[
        bool,
        typer.Option(
            "--null", "-0", help="Values end with a null character.", rich_help_panel=INPUT
        ),
    ] = False,
    delimiter: Annotated[
        str | None,
        typer.Option(
            "--delimiter",
            "-d",
            metavar="TEXT",
            help="Values end with this text.",
            rich_help_panel=INPUT,
        ),
    ] = None,
    trim: Annotated[
        str,
        typer.Option(
            metavar="n|l|r|lr",
            help="Remove blanks at the left or right of columns.",
            rich_help_panel=INPUT,
        ),
    ] = "n",
    no_run_if_empty: Annotated[
        bool,
        typer.Option(
            "--no-run-if-empty",
            "-r",
            help="Leave out values that are empty.",
            rich_help_panel=INPUT,
        ),
    ] = False,
    replacement: Annotated[
        str,
        typer.Option("-I", metavar="TEXT", help="Text in place of {}.", rich_help_panel=INPUT),
    ] = "{}",
    quote: Annotated[
        bool,
        typer.Option(
            "--quote",
            "-q",
            help="Quote the words of the command for the shell.",
            rich_help_panel=INPUT,
        ),
    ] = False,
    jobs: Annotated[
        str | None,
        typer.Option(
            "--jobs",
            "-j",
            metavar="N|N%|+N|-N",
            help="Jobs at a time; on this machine also more than it has processors; 0: all.",
            rich_help_panel=JOBS,
        ),
    ] = None,
    halt: Annotated[
        str,
        typer.Option(
            metavar="RULE",
            help="When to stop: never, now,fail=1, soon,fail=20%, now,success=1, ...",
            rich_help_panel=JOBS,
        ),
    ] = "never",
    timeout: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Kill a job after this.", rich_help_panel=JOBS),
    ] = None,
    retries: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Times that a job is tried.", rich_help_panel=JOBS),
    ] = 1,
    task_processors: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", help="Processors that each job holds.", rich_help_panel=JOBS
        ),
    ] = 1,
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Memory that each job may use.", rich_help_panel=JOBS),
    ] = None,
    workdir: Annotated[
        Path | None,
        typer.Option(
            "--workdir",
            "--wd",
            metavar="DIR",
            help="Folder where jobs run; it must be there at each site. Default: this one.",
            rich_help_panel=JOBS,
        ),
    ] = None,
    transferfile: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="File that a job takes along, such as {}; the job then runs in a folder of its "
            "own, also where this one is not.",
            rich_help_panel=JOBS,
        ),
    ] = None,
    returned: Annotated[
        list[str] | None,
        typer.Option(
            "--return",
            metavar="FILE",
            help="File that a job makes, such as {.}.out; it is in the run's files afterwards.",
            rich_help_panel=JOBS,
        ),
    ] = None,
    keep_order: Annotated[
        bool,
        typer.Option(
            "--keep-order",
            "-k",
            help="Print the output in the order of the values, not as jobs end.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    tag: Annotated[
        bool,
        typer.Option("--tag", help="Begin each line with the values.", rich_help_panel=OUTPUT),
    ] = False,
    joblog: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write a line for each job that ends.", rich_help_panel=OUTPUT
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Leave out the jobs in the job log.", rich_help_panel=OUTPUT),
    ] = False,
    resume_failed: Annotated[
        bool,
        typer.Option(
            "--resume-failed",
            help="The same, but run those again that failed.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the commands, and run none.", rich_help_panel=OUTPUT),
    ] = False,
    progress: Annotated[
        bool,
        typer.Option(
            "--progress",
            "--bar",
            "--eta",
            help="Show progress, forecast and cost on standard error.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    sites: SitesPath = None,
    deadline: Deadline = None,
    budget: Budget = None,
    trade_off: TradeOff = None,
    confidence: Confidence = None,
    runtime: Runtime = None,
    anyway: Annotated[
        bool,
        typer.Option("--anyway", help="Start even if the goal cannot be met."),
    ] = False,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the run.")] = None,
    history: HistoryFile = None,
    runs: RunsFolder = RUNS,
) -> None:
    """
    Run a command for each of many arguments, in the words of GNU parallel.

    The jobs are a run like those of a campaign, with plan, odds, bill and report.
    """
    given = [*(words or [])]
    for file in arg_file or ():
        given += ["::::", file]
    _refuse_unknown(given)
    rules = _input_rules(null, delimiter, colsep, trim, header, max_args, link)
    listed = _listed(
        given,
        rules,
        replace_text=replacement,
        quotes=quote,
        skips_empty=no_run_if_empty,
        transferred=transferfile or (),
        returned=returned or (),
    )
    rule = _halt_rule(halt)
    if dry_run:
        sys.stdout.writelines(f"{one.line}\n" for one in listed.commands)
        return
    before = _logged_before(joblog, resume or resume_failed)
    done = {n for n, job in before.items() if job.succeeded or not resume_failed}
    left = [one for one in listed.commands if one.number not in done]
    if not left:
        return
    from bursar.api.command_list_runs import JobListener, OutputRules, carry_out_commands
    from bursar.api.quote import GoalOutOfReach

    needs = _needs(timeout, retries, task_processors, memory, runtime)
    output = OutputRules(joblog=joblog, appends=bool(before), keep_order=keep_order, tag=tag)

    def start(heard: JobListener) -> "RunResult":
        from bursar.api.running import run
        from bursar.cli.campaign_loading import load_sites, with_options
        from bursar.formats.command_lists.command_campaign import command_campaign
        from bursar.model.campaign import Goal

        facts = load_sites(sites)
        goal = with_options(
            Goal(), deadline=deadline, budget=budget, trade_off=trade_off, confidence=confidence
        )
        folder = Path(os.path.abspath(workdir or "."))
        campaign = command_campaign(
            left, name=listed.name, folder=folder, needs=needs, template=listed.template, goal=goal
        )
        processors, oversubscribes = None, False
        if jobs is not None:
            there = sum(site.processors for site in facts)
            wanted = _at_a_time(jobs, there // task_processors, len(left)) * task_processors
            processors = wanted
            if sites is None:
                # As many as are stated, whatever other runs use: jobs may well wait.
                oversubscribes = wanted > there
                facts = tuple(
                    replace(site, processors=max(site.processors, wanted)) for site in facts
                )
        heard.sites = {site.name: site.kind for site in facts}
        return run(
            campaign,
            facts,
            processors=processors,
            name=name,
            runs=runs,
            anyway=anyway,
            oversubscribe=oversubscribes,
            progress=progress,
            argv=sys.argv,
            history=history,
            listener=heard,
        )

    streams = sys.stdout.buffer, sys.stderr.buffer
    try:
        ended = carry_out_commands(left, rule, output, streams, start)
    except GoalOutOfReach as out_of_reach:
        out_of_reach.quote.print()
        raise typer.Exit(out_of_reach.exit_status) from None
    if ended.halted:
        print_note(f"bursar map: stopped: {ended.halted}")
        raise typer.Exit(1 if rule.what != "success" and ended.failed else 0)
    if ended.failed:
        print_note(
            f"bursar map: {ended.failed} of {len(left)} jobs failed; "
            f"bursar tasks {ended.result.name} --failed"
        )
    raise typer.Exit(ended.result.exit_status)


# What is to be run.


@dataclass(frozen=True, slots=True)
class _CommandList:
    commands: "Sequence[ListedCommand]"
    name: str
    template: str


def _refuse_unknown(words: Sequence[str]) -> None:
    """Refuse an option of GNU parallel that means nothing here, or of nobody."""
    first = words[0] if words else ""
    if not first.startswith("-") or first == "-":
        return
    option = first.partition("=")[0]
    why = _REFUSED.get(option)
    if why is None:
        raise InputError(
            "is no option of bursar map", where=option, hint="bursar map --help lists them"
        )
    raise InputError(f"has no counterpart here: {why}", where=option)


_MACHINES = "machines are described in a sites file, --sites FILE"
_PIPES = "jobs read no standard input; write the parts into files"
_REFUSED = {
    "-S": _MACHINES,
    "--sshlogin": _MACHINES,
    "--slf": _MACHINES,
    "--sshloginfile": _MACHINES,
    "--pipe": _PIPES,
    "--pipepart": _PIPES,
    "--pipe-part": _PIPES,
    "--cat": _PIPES,
    "--fifo": _PIPES,
    "-X": "state the values of a job by -n N",
    "-m": "state the values of a job by -n N",
    "--xargs": "state the values of a job by -n N",
    "-u": "output is printed when a job has ended",
    "--ungroup": "output is printed when a job has ended",
    "--lb": "output is printed when a job has ended",
    "--line-buffer": "output is printed when a job has ended",
    "--results": "output is kept in the run's folder: bursar tasks RUN",
    "--rpl": "it is Perl, which is not run here",
    "--shuf": "jobs run as the plan orders them",
    "--sem": "counted resources of a site are stated in the sites file",
    "--semaphore": "counted resources of a site are stated in the sites file",
    "--memfree": "state what a job needs: --memory SIZE",
    "--load": "state how many jobs run at a time: -j N",
    "--delay": "jobs start as processors come free",
    "--retry-failed": "state the command and its values, and --resume-failed",
    "--trc": "state --transferfile and --return",
    "--onall": "each job runs at one site",
    "--nonall": "each job runs at one site",
    "--tmux": "bursar attach and bursar dashboard show a run",
    "--nice": "start bursar itself under nice",
}


def _input_rules(
    null: bool,
    delimiter: str | None,
    colsep: str | None,
    trim: str,
    header: str | None,
    max_args: int | None,
    link: bool,
) -> "InputRules":
    from bursar.formats.command_lists.input_sources import InputRules

    if null and delimiter is not None:
        raise InputError("goes without --null", where="--delimiter")
    if delimiter == "":
        raise InputError("must not be empty", where="--delimiter")
    text = delimiter
    if text is not None:
        text = {r"\n": "\n", r"\t": "\t", r"\0": "\0"}.get(text, text)
    if trim not in ("n", "l", "r", "lr", "rl"):
        raise InputError(f'expected n, l, r or lr, got "{trim}"', where="--trim")
    if header not in (None, ":"):
        raise InputError(f'expected ":", got "{header}"', where="--header")
    pattern = None
    if colsep is not None:
        try:
            pattern = re.compile(colsep)
        except re.error as error:
            raise InputError(f'"{colsep}": {error}', where="--colsep") from None
        if pattern.groups:
            raise InputError(
                f'"{colsep}" has groups, which would be columns; write (?:...)', where="--colsep"
            )
    return InputRules(
        delimiter="\0" if null else text or "\n",
        colsep=pattern,
        trim=trim,  # type: ignore[arg-type]
        header=header is not None,
        group=max_args,
        links_all=link,
    )


def _listed(
    words: Sequence[str],
    rules: "InputRules",
    *,
    replace_text: str,
    quotes: bool,
    skips_empty: bool,
    transferred: Sequence[str],
    returned: Sequence[str],
) -> _CommandList:
    from bursar.formats.command_lists.command_campaign import ListedCommand
    from bursar.formats.command_lists.input_sources import ValueSource, read_rows, split_words
    from bursar.formats.command_lists.templates import CommandTemplate

    if not replace_text:
        raise InputError("must not be empty", where="-I")
    command, sources = split_words(words)
    table = read_rows(sources or [ValueSource(file="-")], rules, _read)

    def template(text: Sequence[str], *, quotes: bool = False) -> CommandTemplate:
        return CommandTemplate.of(text, names=table.names, replace=replace_text, quotes=quotes)

    wanted = template(command, quotes=quotes)
    taken, brought = [template([t]) for t in transferred], [template([t]) for t in returned]
    commands: list[ListedCommand] = []
    for row in table.rows:
        if skips_empty and not any(row):
            continue
        number = len(commands) + 1
        commands.append(
            ListedCommand(
                number=number,
                # Without a command, what is read are commands.
                line=wanted.filled(row, number, quotes=bool(command)),
                parameters={f"x{i}": value for i, value in enumerate(row, start=1)},
                inputs=tuple(one.filled(row, number, quotes=False) for one in taken),
                outputs=tuple(one.filled(row, number, quotes=False) for one in brought),
            )
        )
    name = "map"
    first = " ".join(command).split()
    if first and re.fullmatch(r"[\w./+-]+", first[0]):
        name = os.path.basename(first[0]) or name
    return _CommandList(commands, name, " ".join(command))


def _read(file: str) -> bytes:
    if file == "-":
        if sys.stdin.isatty():
            print_note("bursar map: values are read from the terminal; Ctrl-D ends them")
        return sys.stdin.buffer.read()
    from bursar.formats.file_text import read_bytes

    return read_bytes(Path(file))


def _halt_rule(text: str) -> "HaltRule":
    from bursar.formats.command_lists.halting import HaltRule

    return parsed(HaltRule.of, text, "--halt")


def _needs(
    timeout: str | None, tries: int, processors: int, memory: str | None, runtime: str | None
) -> "CommandNeeds":
    from bursar.formats.command_lists.command_campaign import SH, CommandNeeds
    from bursar.formats.units import parse_duration, parse_size

    limit = None if timeout is None else parsed(parse_duration, timeout, "--timeout")
    if limit == 0:
        raise InputError("must be positive", where="--timeout")
    return CommandNeeds(
        shell=os.environ.get("PARALLEL_SHELL") or os.environ.get("SHELL") or SH,
        processors=processors,
        memory=None if memory is None else parsed(parse_size, memory, "--memory"),
        runtime=None if runtime is None else parsed(parse_duration, runtime, "--runtime"),
        wall_limit=limit,
        retries=max(0, tries - 1),
    )


def _at_a_time(text: str, there: int, jobs: int) -> int:
    """Return how many jobs run at a time, of at most ``jobs``."""
    match = re.fullmatch(r"([+-]?)(\d+)(%?)", text, re.ASCII)
    if match is None or (match[1] and match[3]):
        raise InputError(f'expected a number, +N, -N or N%, got "{text}"', where="--jobs")
    number = int(match[2])
    if match[1] == "+":
        number = there + number
    elif match[1] == "-":
        number = max(1, there - number)
    elif match[3]:
        number = max(1, round(there * number / 100))
    elif number == 0:
        number = jobs
    return max(1, min(number, jobs, MOST_JOBS))


def _logged_before(joblog: Path | None, resumes: bool) -> "dict[int, LoggedJob]":
    from bursar.formats.command_lists.job_log import read_job_log

    if not resumes:
        return {}
    if joblog is None:
        raise InputError("goes with --joblog FILE", where="--resume")
    if not joblog.exists() or not joblog.stat().st_size:
        return {}
    try:
        text = joblog.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise InputError(str(why), where=str(joblog)) from None
    return read_job_log(text, str(joblog))
