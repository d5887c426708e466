"""
Entry point of the ``bursar`` command.

Exit status: 0 done; 1 tasks failed, or a fault of ours; 2 the input is at fault; 3 no plan meets
the goal; 4 stopped by the budget; 5 deadline missed; 130 interrupted, the run can be resumed.
"""

import gc
import inspect
import os
import sys
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

import bursar
from bursar.cli.command_modules import register_commands
from bursar.cli.completion import CompletionShell
from bursar.cli.late_options import convert_late
from bursar.memory import is_resource_shortage
from bursar.model.errors import BursarError, InputError

if TYPE_CHECKING:
    from typer._click.core import Context
    from typer._click.formatting import HelpFormatter

# Commands that other distributions bring: ``bursar reproduce`` and ``bursar testgrid``.


@dataclass(frozen=True, slots=True)
class AddOnCommand:
    """
    A command of ``bursar`` that another distribution brings.

    Attributes
    ----------
    name
        Word after ``bursar``.
    summary
        Line in ``bursar --help`` while the distribution is absent.
    distribution
        Name of the distribution for ``pip install``.
    module
        Where the command is defined: a module with a function ``register(app)``.
    """

    name: str
    summary: str
    distribution: str
    module: str

    @property
    def is_installed(self) -> bool:
        """Whether the distribution's package can be imported."""
        return find_spec(self.module.partition(".")[0]) is not None


REPRODUCE = AddOnCommand(
    "reproduce",
    "Rerun a paper's experiments and say what agrees.",
    "bursar-papers",
    "bursar_papers.reproduce",
)
TESTGRID = AddOnCommand(
    "testgrid",
    "Start, break and end throwaway clusters under real Slurm on this machine.",
    "bursar-devtools",
    "bursar_devtools.testgrid.testgrid_command",
)
ADD_ON_COMMANDS = (REPRODUCE, TESTGRID)


def register_add_on(app: typer.Typer, command: AddOnCommand) -> None:
    """Add an add-on's command; if its distribution is missing, one that says how to get it."""
    if command.is_installed:
        import_module(command.module).register(app)
    else:
        _register_hint(app, command)


def _register_hint(app: typer.Typer, command: AddOnCommand) -> None:
    message = f"is part of {command.distribution}, which is not installed; to get it:"

    # Whatever words and options follow, the answer is the same.
    @app.command(
        command.name,
        help=f"{command.summary} Needs {command.distribution}.",
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
        add_help_option=False,
    )
    def say_how_to_get_it() -> None:
        raise InputError(
            f"{message} pip install {command.distribution}", where=f"bursar {command.name}"
        )


# The table of commands: help reads the table alone, and a command loads only its own module.


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """
    A command of ``bursar``, whose module is imported when the command is used.

    Attributes
    ----------
    name
        Word after ``bursar``.
    module
        Module of :mod:`bursar.cli` that defines the command.
    summary
        Text in ``bursar --help``: the first paragraph of the command's own help.
    """

    name: str
    module: str
    summary: str


COMMANDS: tuple[CommandEntry | AddOnCommand, ...] = (
    CommandEntry(
        "plan",
        "campaigns",
        "Show the trade-off of time against cost of a campaign, before anything starts.",
    ),
    CommandEntry(
        "match",
        "sites",
        "Show which sites match a campaign's jobs, how they rank, and why others do not match.",
    ),
    CommandEntry(
        "run",
        "campaigns",
        "Plan and run a campaign, and bill it. After Ctrl-C the run can be resumed.",
    ),
    CommandEntry(
        "map",
        "mapping",
        "Run a command for each of many arguments, in the words of GNU parallel.",
    ),
    CommandEntry(
        "attach",
        "runs",
        "Show a run that goes on elsewhere, until it ends; Ctrl-C leaves the run going.",
    ),
    CommandEntry(
        "stop",
        "runs",
        "Stop a run that another process carries out, as Ctrl-C does there.",
    ),
    CommandEntry(
        "add-site",
        "runs",
        "Let a run that goes on use further sites, and have what is left planned again.",
    ),
    CommandEntry(
        "cancel",
        "runs",
        "Cancel a run for good: it is stopped and cannot be resumed. What has ended is kept.",
    ),
    CommandEntry(
        "amend", "amending", "Change the deadline or budget of a run, even while it runs."
    ),
    CommandEntry(
        "simulate",
        "campaigns",
        "Plan, run and bill a campaign in simulated time: nothing is started or spent.",
    ),
    CommandEntry("runs", "runs", "List the runs, the oldest first."),
    CommandEntry("tag", "kept_runs", "Give a run tags and a note, or show those that it has."),
    CommandEntry(
        "compare",
        "kept_runs",
        "Compare two runs: time, cost, failures, parameters, and tasks that both have.",
    ),
    CommandEntry("export", "exports", "Write a run's record in a format that other tools read."),
    CommandEntry(
        "clean", "kept_runs", "Delete old runs; without --yes, list what would be deleted."
    ),
    CommandEntry(
        "history",
        "history",
        "Look at what ended tasks took, import it from other tools, export and forget it.",
    ),
    CommandEntry("forecasts", "history", "Show how forecasts of runs came out."),
    CommandEntry(
        "dashboard",
        "dashboard",
        "Show the runs of a folder in the browser, live. Ctrl-C ends the page; runs go on.",
    ),
    CommandEntry(
        "report",
        "runs",
        "Write a run's results, bill and report.html; the run may be unfinished.",
    ),
    CommandEntry(
        "bill",
        "runs",
        "Show what a run cost, by site and by task; the total is the ledger's to the unit.",
    ),
    CommandEntry(
        "tasks",
        "runs",
        "List a run's tasks with state, time, parameters, and what went wrong.",
    ),
    CommandEntry(
        "table",
        "runs",
        "Print parameters and results of a run's tasks in one table.",
    ),
    CommandEntry(
        "logs",
        "kept_runs",
        "Print what a task printed: its stdout to stdout, its stderr to stderr.",
    ),
    CommandEntry(
        "retry",
        "runs",
        "Run failed tasks of a run again, and what could not run because of them.",
    ),
    CommandEntry(
        "pilots",
        "runs",
        "Show a run's requests to its sites: waits, and processor time held, used and idle.",
    ),
    CommandEntry("why", "runs", "Explain why a task ran where it did."),
    CommandEntry("why-not", "runs", "Explain why a site got no more tasks than it did."),
    CommandEntry(
        "sites",
        "sites",
        "Show the sites with processors and prices, and the state of those that can be queried.",
    ),
    CommandEntry(
        "submit",
        "submit",
        "Send tasks to a service, and print the instance's id. The tasks are on the service's "
        "disk when this command returns.",
    ),
    CommandEntry(
        "watch",
        "service_commands",
        "Watch an instance until all its tasks have ended. Ctrl-C leaves them running.",
    ),
    CommandEntry(
        "results",
        "submit",
        "Print results in the order in which tasks ended. The exit status is 1 if a task failed.",
    ),
    CommandEntry(
        "quote",
        "trading",
        "Ask services what processors cost; with --buy, buy at the lowest price.",
    ),
    CommandEntry(
        "tender",
        "trading",
        "Call services for bids, buy from the lowest bidder, and print the agreement's id.",
    ),
    CommandEntry(
        "bargain",
        "trading",
        "Bargain with services, from the lowest quote on, buy, and print the agreement's id.",
    ),
    CommandEntry(
        "auctions",
        "trading",
        "List a service's auctions: those open, those over lately, and the next ones.",
    ),
    CommandEntry(
        "bid",
        "trading",
        "Bid in a service's auction until the end; print the agreement's id if the lot is won.",
    ),
    CommandEntry("exchange", "trading", "Buy and sell processors where several owners meet."),
    CommandEntry(
        "top",
        "service_commands",
        "Show a service live: instances, workers, throughput and spending.",
    ),
    REPRODUCE,
    CommandEntry(
        "man",
        "man_pages",
        "Show the manual page of a command; without a terminal, print its source for man.",
    ),
    CommandEntry("schema", "schemas", "Print the JSON Schema of campaign, sites or service files."),
    CommandEntry(
        "serve",
        "administration",
        "Serve this machine, or a cluster, to users over HTTP. Ctrl-C ends the service; tasks "
        "that run go on with their workers, and the service finds them when started again.",
    ),
    CommandEntry(
        "slurm-shim",
        "slurm_shim",
        "Write sbatch, squeue, scancel, sacct, scontrol, sinfo and srun into a folder: programs "
        "that drive Slurm then use Bursar. Options that are not honoured are refused by name.",
    ),
    CommandEntry("ledger", "ledger", "Keep the accounts of users and providers over all runs."),
    CommandEntry("replicas", "replicas", "Find, copy and check the copies of logical files."),
    CommandEntry(
        "instance",
        "service_commands",
        "List, cancel, export and destroy instances at a service, and fetch their files.",
    ),
    CommandEntry(
        "account",
        "service_commands",
        "Show and change your money at a service: balance, agreements, charges.",
    ),
    CommandEntry(
        "owner",
        "trading",
        "Run a service's business: prices, agreements and revenue. The token needs the scope sell.",
    ),
    CommandEntry(
        "certs",
        "administration",
        "Make and revoke certificates of a private authority, for services and their users.",
    ),
    CommandEntry(
        "tokens",
        "administration",
        "Make and revoke tokens of a service's users. This needs a token of the scope admin; "
        "bursar serve writes the first one into its folder.",
    ),
    CommandEntry("tune", "sites", "Find settings of the broker by simulation."),
    CommandEntry("trace", "trace", "Inspect, simulate and compare logs of clusters."),
    TESTGRID,
)

PURPOSES = {
    "Plan and run": "plan match run map attach stop cancel amend add-site retry simulate tune",
    "Look and collect": "runs dashboard tasks logs table report bill pilots why why-not tag "
    "compare export clean history forecasts",
    "Money and market": "ledger quote tender bargain auctions bid exchange",
    "Services and sites": "sites replicas submit watch results instance account top serve owner "
    "slurm-shim certs tokens",
    "Develop": "schema man trace reproduce testgrid",
}
"""Names of commands by purpose, in the order of ``bursar --help``."""


class LoadedCommands(MutableMapping[str, Any]):
    """Holds the commands of :data:`COMMANDS` by name; each is loaded when it is looked up."""

    def __init__(self) -> None:
        self._entries = {entry.name: entry for entry in COMMANDS}
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        entry = self._entries[name]
        if name not in self._loaded:
            # No completion here: the group that holds the commands has the options for that.
            app = typer.Typer(add_completion=False)
            if isinstance(entry, AddOnCommand):
                register_add_on(app, entry)
            else:
                register_commands(entry.module, app)
            app.callback()(_nothing)  # a group also where it holds one command
            loaded = typer.main.get_group(app).commands
            for command in loaded.values():
                for part in (command, *getattr(command, "commands", {}).values()):
                    convert_late(part.params)
                    part.help = _reflowed(part.help or "")
            self._loaded |= loaded
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        raise TypeError("commands are listed in COMMANDS")

    def __delitem__(self, name: str) -> None:
        raise TypeError("commands are listed in COMMANDS")

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def _reflowed(text: str) -> str:
    """Return a docstring with a line for each paragraph, so that any terminal can fold it."""
    return "\n\n".join(" ".join(part.split()) for part in inspect.cleandoc(text).split("\n\n"))


def _nothing() -> None:
    """Do nothing before a command."""


class CommandTable(TyperGroup):
    """The group of all commands, which lists them without loading them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = LoadedCommands()

    def list_commands(self, ctx: "Context") -> list[str]:
        """Return the names of the commands, in the table's order."""
        return list(self.commands)

    def get_params(self, ctx: "Context") -> Any:
        """Return all parameters, with those that Typer adds."""
        params = super().get_params(ctx)
        convert_late(params)
        return params

    def get_command(self, ctx: "Context", cmd_name: str) -> Any:
        """Return a command by its name, or None."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            for part in (command, *getattr(command, "commands", {}).values()):
                convert_late([part.get_help_option(ctx)])
        return command

    def format_commands(self, ctx: "Context", formatter: "HelpFormatter") -> None:
        """Write each command's name and summary, by purpose."""
        entries = {entry.name: entry for entry in COMMANDS}
        width = max(map(len, entries))
        for purpose, names in PURPOSES.items():
            with formatter.section(purpose):
                # As wide in every section, so that all summaries are in one column.
                rows = [(f"{n:{width}}", summary_of(entries[n])) for n in names.split()]
                formatter.write_dl(rows)


def summary_of(entry: CommandEntry | AddOnCommand) -> str:
    """Return the text about a command in ``bursar --help``."""
    if isinstance(entry, AddOnCommand) and not entry.is_installed:
        return f"{entry.summary} Needs {entry.distribution}."
    return entry.summary


INTERRUPTED = 130

app = typer.Typer(
    name="bursar",
    cls=CommandTable,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    # Plain text, which needs no library that takes longer to load than the help to read.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit status: 0 done, 1 tasks failed, 2 bad input, 3 infeasible goal, "
    "4 stopped by budget, 5 deadline missed, 130 interrupted.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"bursar {bursar.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
    completion: CompletionShell = None,
) -> None:
    """Plans, buys and runs computing campaigns by deadline and budget."""


_NEW_OBJECTS = 10_000
"""New objects after which Python looks for unreachable cycles."""


def main() -> None:
    """Runs the command line and exits with the command's status."""
    # Tasks, claims and results come by the thousand and end without cycles: to look for cycles
    # after each 700 new objects, as Python does, takes 7 % of a service's time.
    gc.set_threshold(_NEW_OBJECTS)
    try:
        status = app(standalone_mode=False)
        sys.stdout.flush()
        code = status if isinstance(status, int) else 0
    except BursarError as error:
        code = _complain(str(error), error.exit_status)
    except typer.TyperException as error:
        code = _complain_of_usage(error)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except BrokenPipeError:
        # The reader went away (a pager was closed): nobody is left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except Exception as error:
        if not is_resource_shortage(error):
            raise
        message = " ".join(str(error).split()) or type(error).__name__
        code = _complain(f"no more memory, threads or processes are to be had: {message}", 1)
    # Python looks for cycles among all objects several times as it ends, a fifth of the processor
    # time of a small run; those that are frozen are passed over.
    gc.freeze()
    sys.exit(code)


def _complain(message: str, status: int) -> int:
    print(f"bursar: {message}", file=sys.stderr)
    return status


def _complain_of_usage(error: typer.TyperException) -> int:
    """
    Print what is wrong with a command line on stderr, and return the exit status.

    The message takes one line, as for any other bad input, instead of the library's box.
    """
    message = " ".join(getattr(error, "format_message", error.__str__)().split())
    message = message.replace("Value error, ", "")  # Pydantic's words
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "bursar"
    print(f"{command}: {message} (see {command} --help)", file=sys.stderr)
    return int(getattr(error, "exit_code", 2))
