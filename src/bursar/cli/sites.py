"""``bursar sites``, ``match`` and ``tune``: what sites are and have, and how to rank them."""

import contextlib
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bursar.cli.campaign_loading import brokering, load_campaign, load_sites
from bursar.cli.options import (
    RUNS,
    Alpha,
    AsJson,
    Beta,
    CampaignPath,
    CatalogueFile,
    Choice,
    RunsFolder,
    Runtime,
    SitesPath,
    WeightsFile,
    print_json,
    print_note,
)
from bursar.model.errors import BursarError, InputError, SiteError
from bursar.model.matching import SiteStatus
from bursar.model.site import SiteFacts

if TYPE_CHECKING:
    from bursar.api.tuning import OnProgress, RankTuning
    from bursar.model.campaign import Campaign


# ``bursar sites`` and ``bursar match``: what one may use, and which of it suits the jobs.

# ``bursar match``: which sites match the jobs of a campaign, and how they rank.


def register_match(app: typer.Typer) -> None:
    """Add ``bursar match`` to the command line."""
    app.command("match")(match_campaign)


def match_campaign(
    campaign: CampaignPath,
    sites: SitesPath = None,
    task: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Show only this task. Default: one task of each kind."),
    ] = None,
    catalogue: CatalogueFile = None,
    choice: Choice = None,
    alpha: Alpha = None,
    beta: Beta = None,
    weights: WeightsFile = None,
    as_json: AsJson = False,
) -> None:
    """Show which sites match a campaign's jobs, how they rank, and why others do not match."""
    from bursar.api.matching import match
    from bursar.model.errors import InputError

    settings = brokering(choice=choice, alpha=alpha, beta=beta, weights=weights, refresh=None)
    try:
        matches = match(campaign, sites, broker=settings, catalogue=catalogue, task=task)
    except InputError as error:
        if error.where == "task":
            raise InputError(error.message, where="--task", hint=error.hint) from None
        raise
    if as_json:
        print_json(matches.to_dict())
    else:
        matches.print()
    raise typer.Exit(matches.exit_status)


# ``bursar sites``: what one may use.

SiteAnswer = SiteStatus | SiteError | None


CloudSites = Annotated[
    Path, typer.Argument(metavar="SITES", help="Sites file.", show_default=False)
]


def register(app: typer.Typer) -> None:
    """Add ``bursar sites`` to the command line."""
    group = typer.Typer()
    group.callback(invoke_without_command=True)(show_sites)
    group.command("list")(list_machines)
    group.command("reap")(reap_machines)
    app.add_typer(group, name="sites")


def list_machines(sites: CloudSites, runs: RunsFolder = RUNS, as_json: AsJson = False) -> None:
    """Show the machines with your tag that clouds have, and the runs that they are for."""
    _show_machines(sites, runs, as_json, reap=False)


def reap_machines(
    sites: CloudSites,
    runs: RunsFolder = RUNS,
    every: Annotated[
        bool,
        typer.Option("--all", help="End also machines of runs that go on, and of runs elsewhere."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be ended, and end nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """
    End machines that runs have left at clouds.

    These are machines with your tag of runs in the folder of runs that do not go on. Machines of
    runs that go on, or that the folder does not know, are left alone without --all.
    """
    _show_machines(sites, runs, as_json, reap=not dry_run, doomed=True, every=every)


def _show_machines(
    sites: Path,
    runs: Path,
    as_json: bool,
    *,
    reap: bool,
    doomed: bool = False,
    every: bool = False,
) -> None:
    """Print the machines at clouds, and end those that no living run has, where asked to."""
    import asyncio

    from bursar.formats.sites_toml import read_sites
    from bursar.sites.cloud.reaping import find_machines

    facts = read_sites(sites)
    if all(site.cloud is None for site in facts):
        raise InputError("has no cloud", where=str(sites), hint='a cloud has kind = "cloud"')
    names, living = _known_runs(runs)

    def is_left(run: str) -> bool:
        return doomed and (every or (run in names and run not in living))

    found, silent = asyncio.run(find_machines(facts, is_left if reap else None))
    rows: list[dict[str, Any]] = []
    for one in found:
        run = one.machine.label.run
        state = "ended" if one.is_ended else one.machine.state
        rows.append(
            {
                "site": one.site,
                "machine": one.machine.id,
                "type": one.machine.type,
                "run": names.get(run),
                "run_label": run,
                "lease": one.machine.label.lease,
                "began": one.machine.began,
                "state": "would end" if is_left(run) and not reap else state,
                "error": one.error or None,
            }
        )
    if as_json:
        print_json({"machines": rows, "silent": silent})
    else:
        _print_machines(rows, living)
        for line in (
            *silent,
            *(f"{row['machine']}: {row['error']}" for row in rows if row["error"]),
        ):
            print_note(line)
    if silent or any(row["error"] for row in rows):
        raise typer.Exit(1)


def _print_machines(rows: Sequence[dict[str, Any]], living: Collection[str]) -> None:
    from rich.console import Console

    from bursar.report.tables import span, table_of

    if not rows:
        print_note("no machine of yours is there")
        return
    if unknown := sum(
        row["run"] is None and row["state"] not in ("ended", "would end") for row in rows
    ):
        print_note(
            f"{unknown} of runs that are not in the folder of runs; reap --all ends these, too"
        )
    table = table_of("site", "machine", "type", "run", "lease", "since", "state")
    for row in rows:
        since = "" if row["began"] is None else f"{span(max(0.0, time.time() - row['began']))} ago"
        run = row["run"] or row["run_label"]
        state = row["state"] + (", its run goes on" if row["run_label"] in living else "")
        cells = (row["site"], row["machine"], row["type"], run, row["lease"], since, state)
        table.add_row(*cells)
    Console().print(table)


def _known_runs(runs: Path) -> tuple[dict[str, str], set[str]]:
    """Return the names of runs by their label at clouds, and the labels of those that go on."""
    from bursar.runs.folder import RunFolder
    from bursar.runs.run_record import effective_manifest
    from bursar.sites.cloud.provider import run_word

    names: dict[str, str] = {}
    living: set[str] = set()
    for folder in RunFolder.all(runs):
        label = run_word(folder.identity)
        names[label] = folder.name
        with contextlib.suppress(BursarError):
            if effective_manifest(folder).state in ("new", "running"):
                living.add(label)
    return names, living


def show_sites(context: typer.Context, sites: SitesPath = None, as_json: AsJson = False) -> None:
    """Show the sites with processors and prices, and the state of those that can be queried."""
    from bursar.formats.sites_toml import read_sites

    if context.invoked_subcommand is not None:
        if sites is not None or as_json:
            raise InputError(
                "goes behind the name of the subcommand", where="--sites" if sites else "--json"
            )
        return
    # A file as it is: machines that do not answer are shown, not an error.
    facts, answers = _asked(load_sites(None) if sites is None else read_sites(sites))
    now = _prices_now(facts)
    if as_json:
        print_json(
            {
                "sites": [
                    _as_dict(site)
                    | {"price_now": now[site.name]}
                    | _status_fields(answers[site.name])
                    for site in facts
                ]
            }
        )
        return
    from rich.console import Console

    from bursar.report.charts import exchange_lines
    from bursar.report.tables import table_of

    table = table_of(
        "site", "kind", "free", "wait", "speed", "price", right=slice(2, 5), whole=slice(5, 6)
    )
    for site in facts:
        free, wait = _shown(answers[site.name])
        table.add_row(
            site.name,
            site.kind if site.batch is None else site.batch.manager,
            f"{free} of {site.processors}" if free.isdecimal() else f"of {site.processors}, {free}",
            wait,
            f"{site.speed:g}",
            _prices(site, now[site.name]),
        )
    Console().print(table)
    for said in exchange_lines(facts):
        Console().print(said, highlight=False)
    for answer in answers.values():
        for line in _host_lines(answer):
            Console().print(line, markup=False, highlight=False, soft_wrap=True)
        if isinstance(answer, SiteError):
            Console(stderr=True).print(str(answer), markup=False, highlight=False)


def _prices_now(sites: Sequence[SiteFacts]) -> dict[str, float | None]:
    """Return the present price of each site, by name."""
    if all(site.pricing is None for site in sites):
        return {site.name: site.unit_price for site in sites}
    from bursar.broker.trading import price_sites
    from bursar.sites.owners import known_owners

    with known_owners() as owners:
        return {site.name: site.unit_price for site in price_sites(sites, time.time(), owners)}


def _asked(sites: Sequence[SiteFacts]) -> tuple[list[SiteFacts], dict[str, SiteAnswer]]:
    """
    Return the sites, each with its answer or the reason for none; None where a site has no query.
    """
    from bursar.sites.local import LocalSite
    from bursar.sites.owners import known_owners

    known = {site.name: site for site in sites}
    with known_owners() as owners:
        answers: dict[str, SiteAnswer] = {
            site.name: LocalSite(site, places=owners).status() if site.kind == "local" else None
            for site in sites
        }
    if any((site.batch or site.remote or site.dask or site.ssh) is not None for site in sites):
        from bursar.api.queues import query_sites

        for name, answer in query_sites(sites).items():
            if isinstance(answer, SiteError):
                answers[name] = answer
            else:
                known[name], answers[name] = answer
    return list(known.values()), answers


def _shown(status: SiteAnswer) -> tuple[str, str]:
    """Free processors and traversal time, for the table."""
    if isinstance(status, SiteError):
        return "no answer", "unknown"
    if status is None:
        return "unknown", "unknown"
    wait = status.traversal_time
    return str(status.free_processors), "unknown" if wait is None else f"{wait:g} s"


def _host_lines(status: SiteAnswer) -> Iterator[str]:
    """Yield a line for each machine of a site that is a list of machines."""
    if not isinstance(status, SiteStatus):
        return
    for host in status.hosts:
        if host.error:
            yield f"{status.site}: {host.error}"
            continue
        memory = [
            "unknown" if size is None else f"{size / 1e9:.3g} GB"
            for size in (host.memory, host.free_memory)
        ]
        yield (
            f"{status.site}: {host.host}: {host.processors} processors, {host.free} free; "
            f"memory {memory[0]}, {memory[1]} free"
        )


def _status_fields(status: SiteAnswer) -> dict[str, Any]:
    """Status fields of the JSON output, for scripts."""
    error = str(status) if isinstance(status, SiteError) else None
    if isinstance(status, SiteError):
        status = None
    return {
        "error": error,
        "free_processors": None if status is None else status.free_processors,
        "traversal_time_s": None if status is None else status.traversal_time,
        "free_memory": None if status is None else status.free_memory,
        "hosts": [] if status is None else [asdict(host) for host in status.hosts],
    }


def _prices(site: SiteFacts, unit_price: float | None) -> str:
    """Return the price of processors, and below it that of each slot if there is one."""
    if unit_price is None:
        return "unknown"
    text = f"{unit_price * 3600:.6g} {site.currency}/core-hour"
    if site.pricing is not None:
        text += " now"
    if site.fixed_price:
        text += f"\n+ {site.fixed_price:.6g} {site.currency}/slot"
    return text


def _as_dict(site: SiteFacts) -> dict[str, Any]:
    return {
        "name": site.name,
        "kind": site.kind if site.batch is None else site.batch.manager,
        "processors": site.processors,
        "speed": site.speed,
        "unit_price": site.unit_price,
        "fixed_price": site.fixed_price,
        "currency": site.currency,
        "exchange": None
        if site.exchange is None
        else {
            "currency": site.exchange.currency,
            "rate": site.exchange.rate,
            "since": site.exchange.since,
        },
        "memory": site.memory,
        "trust": None if site.remote is None else site.remote.trust,
    }


# ``bursar tune rank``: weights of the broker's rank, found by simulating one's own sites.


def register_tune(app: typer.Typer) -> None:
    """Add ``bursar tune`` to the command line."""
    tune = typer.Typer(no_args_is_help=True, help="Find settings of the broker by simulation.")
    tune.command("rank")(tune_weights)
    app.add_typer(tune, name="tune")


def tune_weights(
    sites: Annotated[
        Path, typer.Option("--sites", metavar="FILE", help="Sites file.", show_default=False)
    ],
    load: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="Mean time between two submissions of jobs.", show_default=False
        ),
    ],
    campaign: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Campaign whose tasks the jobs resemble. Default: jobs of ten minutes "
            "that read 1 GB each.",
        ),
    ] = None,
    runtime: Runtime = None,
    topology: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Topology file of the network. Default: the links in the sites file.",
        ),
    ] = None,
    catalogue: CatalogueFile = None,
    choice: Annotated[
        str, typer.Option(metavar="NAME", help="Rule that chooses the site.")
    ] = "best",
    refresh: Annotated[
        str,
        typer.Option(metavar="TIME", help="Time between two refreshes of the information index."),
    ] = "60s",
    jobs: Annotated[int, typer.Option(metavar="N", help="Jobs in each simulation.")] = 300,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of all random draws.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the weights to this file, for `--weights`."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """
    Search for the weights of rank and files that give the shortest time from submission to end.

    The command simulates the sites under the given load a few hundred times.
    """
    from bursar.api.tuning import tune_rank
    from bursar.formats.network_files import read_topology
    from bursar.formats.sites_toml import read_sites

    wanted = None if campaign is None else _campaign(campaign, runtime)
    if campaign is None and runtime is not None:
        raise InputError("goes with --campaign only", where="--runtime")
    with _progress() as on_progress:
        tuning = tune_rank(
            read_sites(sites),
            _seconds(load, "--load"),
            campaign=wanted,
            topology=None if topology is None else read_topology(topology),
            catalogue=catalogue,
            choice=choice,
            every=_seconds(refresh, "--refresh"),
            jobs=jobs,
            seed=seed,
            on_progress=on_progress,
        )
    if out is not None:
        tuning.write(out)
    if as_json:
        print_json(tuning.to_dict())
    else:
        _show(tuning)
    if out is not None:
        print_note(f"wrote {out}")


def _seconds(text: str, option: str) -> float:
    from bursar.formats.units import parse_duration

    try:
        return parse_duration(text)
    except InputError as error:
        raise error.within(option) from None


def _campaign(path: Path, runtime: str | None) -> "Campaign":

    return load_campaign(
        path,
        deadline=None,
        budget=None,
        trade_off=None,
        confidence=None,
        runtime=runtime,
        replay_scale=None,
        size_scale=1.0,
    )


def _show(tuning: "RankTuning") -> None:
    from rich.console import Console

    from bursar.report.tables import table_of

    found = tuning.found
    titles = ("", "alpha", "beta", "mean lifetime (s)", "95 % interval")
    table = table_of(*titles, right=slice(1, None))
    for name, weights, lifetime in (
        ("default", found.default, found.default_lifetime),
        ("best found", found.best, found.best_lifetime),
    ):
        table.add_row(
            name,
            f"{weights.alpha:g}",
            f"{weights.beta:g}",
            f"{lifetime.mean:,.1f}",
            f"{lifetime.low:,.1f} to {lifetime.high:,.1f}",
        )
    console = Console()
    console.print(table)
    gain = found.gain
    if found.best == found.default:
        console.print("nothing tried was better than the default")
        return
    console.print(
        f"shorter by {gain.mean:,.1f} s ({gain.low:,.1f} to {gain.high:,.1f})"
        + ("" if tuning.is_better else ": which may be chance")
    )


@contextlib.contextmanager
def _progress() -> "Iterator[OnProgress | None]":
    """A bar with the time left on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        bar = shown.add_task("tune", total=None)
        yield lambda done, total: shown.update(bar, completed=done, total=total)
