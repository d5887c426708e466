"""``bursar trace``: batch-cluster studies on logs of real machines."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bursar.cli.options import AsJson, print_json, print_note
from bursar.model.errors import InputError, spelling_hint

if TYPE_CHECKING:
    from bursar.cluster.simulation import SimulatedSchedule
    from bursar.model.trace import Trace

POLICIES = ("fcfs", "easy", "conservative")

app = typer.Typer(no_args_is_help=True, help="Inspect, simulate and compare logs of clusters.")


def register(parent: typer.Typer) -> None:
    """Add ``bursar trace`` to the command line."""
    parent.add_typer(app, name="trace")


Log = Annotated[
    Path,
    typer.Argument(
        metavar="LOG",
        help="A log in the Standard Workload Format; also .gz and .xz.",
        show_default=False,
    ),
]
Size = Annotated[
    int | None,
    typer.Option(
        "--processors",
        "-p",
        metavar="N",
        help="Processors of the machine. Default: what the log says.",
    ),
]
Width = Annotated[
    str,
    typer.Option(
        metavar="requested|allocated",
        help="Column with the processors that a job holds, if the log has two.",
    ),
]
Estimates = Annotated[
    str,
    typer.Option(
        metavar="user|actual",
        help="Run times that the policy plans with: the users' estimates or the actual ones.",
    ),
]
Semantics = Annotated[
    str,
    typer.Option(
        metavar="batch|pyss",
        help="Handle all events of one instant together (batch), or run the policy "
        "after each event (pyss).",
    ),
]
Early = Annotated[
    str,
    typer.Option(
        metavar="compress|keep",
        help="Conservative backfilling: move promised starts forward after an early "
        "end (compress), or keep them.",
    ),
]
Overrun = Annotated[
    str,
    typer.Option(
        metavar="kill|extend", help="Jobs that exceed their estimate are killed or go on (extend)."
    ),
]
Tau = Annotated[
    float, typer.Option(metavar="SECONDS", help="Lower bound of run times in the bounded slowdown.")
]


@app.command("simulate")
def simulate_trace(
    log: Log,
    processors: Size = None,
    policy: Annotated[
        str, typer.Option(metavar="fcfs|easy|conservative", help="Scheduling policy.")
    ] = "conservative",
    width: Width = "requested",
    estimates: Estimates = "user",
    semantics: Semantics = "batch",
    early: Early = "compress",
    overrun: Overrun = "kill",
    tau: Tau = 10.0,
    csv: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a table of all jobs, with Batsim's columns."),
    ] = None,
    swf: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the log with simulated waits.")
    ] = None,
    gantt: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a Gantt chart: .png, .svg or .html.")
    ] = None,
    since: Annotated[
        float | None, typer.Option("--from", metavar="SECONDS", help="Start of the chart.")
    ] = None,
    until: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="End of the chart.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Simulate a log on a machine under a policy, and say when each job would have started."""
    from bursar.report.traces import print_results, result_to_dict

    _check_tau(tau)
    _check_picture(gantt, "--gantt")
    trace, size = _load(log, processors, width)
    result = _simulate(
        trace, size, policy, estimates=estimates, semantics=semantics, early=early, overrun=overrun
    )
    found = result_to_dict(trace, result, _measure(trace, result, tau))
    cleaning = _cleaning(trace)
    if csv is not None:
        from bursar.formats.trace_files import write_jobs_csv

        write_jobs_csv(csv, trace, result.start, result.finish, result.killed, size)
        print_note(f"wrote {csv}")
    if swf is not None:
        from bursar.formats.trace_files import write_swf

        header = [f"Simulated from {trace.name}: {policy} on {size} processors"]
        write_swf(
            swf,
            trace,
            wait=result.start - trace.submit,
            runtime=result.finish - result.start,
            status=1 - result.killed,
            header=header,
        )
        print_note(f"wrote {swf}")
    if gantt is not None:
        _draw(gantt, trace, result, since, until)
        print_note(f"wrote {gantt}")
    if as_json:
        print_json({**found, "cleaning": cleaning})
    else:
        print_results([found], cleaning)


@app.command("info")
def show_info(
    log: Log, processors: Size = None, width: Width = "requested", as_json: AsJson = False
) -> None:
    """Describe a log: jobs, users, widths, run times, load by week, dropped lines."""
    from bursar.report.traces import print_trace, trace_to_dict

    trace, _ = _load(log, processors, width, needed=False)
    found = trace_to_dict(trace, processors or trace.max_processors)
    if as_json:
        print_json(found)
    else:
        print_trace(found)


@app.command("compare")
def compare_policies(
    log: Log,
    processors: Size = None,
    policies: Annotated[
        str, typer.Option(metavar="P,P,...", help="Policies to compare.")
    ] = ",".join(POLICIES),
    width: Width = "requested",
    estimates: Estimates = "user",
    semantics: Semantics = "batch",
    early: Early = "compress",
    overrun: Overrun = "kill",
    tau: Tau = 10.0,
    chart: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a chart of queue length and use over time: .png, .svg or .html.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare policies on one log."""
    from bursar.report.traces import print_results, result_to_dict

    _check_tau(tau)
    _check_picture(chart, "--chart")
    names = list(dict.fromkeys(name.strip() for name in policies.split(",") if name.strip()))
    for name in names:
        if name not in POLICIES:
            raise InputError(
                f'unknown policy "{name}", expected one of {", ".join(POLICIES)}',
                where="--policies",
                hint=spelling_hint(name, POLICIES),
            )
    if not names:
        raise InputError("names no policy", where="--policies")
    trace, size = _load(log, processors, width)
    results = {
        name: _simulate(
            trace, size, name, estimates=estimates, semantics=semantics, early=early,
            overrun=overrun,
        )
        for name in names
    }  # fmt: skip
    rows = [result_to_dict(trace, r, _measure(trace, r, tau)) for r in results.values()]
    if chart is not None:
        from bursar.report.charts import save_chart
        from bursar.report.traces import comparison_chart

        save_chart(comparison_chart(trace, results), chart)
        print_note(f"wrote {chart}")
    if as_json:
        print_json({"results": rows, "cleaning": _cleaning(trace)})
    else:
        print_results(rows, _cleaning(trace))


@app.command("generate")
def generate(
    model: Annotated[
        str,
        typer.Argument(metavar="lublin|poisson", help="Model of the workload.", show_default=False),
    ],
    output: Annotated[Path, typer.Argument(metavar="LOG", help="Log to write, .swf.")],
    processors: Annotated[
        int, typer.Option("--processors", "-p", metavar="N", help="Processors of the machine.")
    ] = 128,
    jobs: Annotated[int, typer.Option(metavar="N", help="Number of jobs (model lublin).")] = 10_000,
    until: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="Time of the last submission (model poisson): 30000, 7d."
        ),
    ] = "7d",
    seed: Annotated[
        int, typer.Option(metavar="N", help="Seed of random draws; equal seeds give equal logs.")
    ] = 1,
) -> None:
    """Generate a workload by Lublin and Feitelson's model, or with Poisson arrivals."""
    import numpy as np

    from bursar.formats.trace_files import write_swf
    from bursar.formats.units import parse_duration
    from bursar.simulation.workloads import lublin_feitelson, poisson_background

    if seed < 0:
        raise InputError(f"must not be negative, got {seed}", where="--seed")
    rng = np.random.default_rng(seed)
    match model:
        case "lublin":
            trace = lublin_feitelson(rng, jobs=jobs, processors=processors)
        case "poisson":
            try:
                seconds = parse_duration(until)
            except InputError as error:
                raise error.within("--until") from None
            trace = poisson_background(rng, processors=processors, until=seconds)
        case _:
            raise InputError(
                f'unknown model "{model}", expected lublin or poisson',
                hint=spelling_hint(model, ("lublin", "poisson")),
            )
    write_swf(output, trace, header=[f"Made up by the model {trace.name}, seed {seed}"])
    print_note(f"wrote {output}: {len(trace)} jobs")


@app.command("load")
def load_more(
    log: Log,
    output: Annotated[Path, typer.Argument(metavar="NEW", help="Log to write, .swf.")],
    utilisation: Annotated[
        str,
        typer.Option(metavar="SHARE", help="Utilisation to reach: 0.8 or 80%.", show_default=False),
    ],
    processors: Size = None,
    width: Width = "requested",
    seed: Annotated[
        int, typer.Option(metavar="N", help="Seed of random draws; equal seeds give equal logs.")
    ] = 1,
) -> None:
    """Raise a log's load: add a share of its jobs again, one week later."""
    import numpy as np

    from bursar.formats.trace_files import write_swf
    from bursar.formats.units import parse_share
    from bursar.simulation.workloads import probability_for

    if seed < 0:
        raise InputError(f"must not be negative, got {seed}", where="--seed")
    try:
        share = parse_share(utilisation)
    except InputError as error:
        raise error.within("--utilisation") from None
    trace, size = _load(log, processors, width)
    probability, loaded = probability_for(
        trace, share, np.random.default_rng(seed), processors=size
    )
    header = [
        f"{trace.name}, and a copy one week later with probability {probability:.6f}, seed {seed}"
    ]
    write_swf(output, loaded, header=header)
    print_note(f"wrote {output}: {len(loaded)} jobs, each of the copy kept with {probability:.4f}")


def _load(
    log: Path, processors: int | None, width: str, *, needed: bool = True
) -> "tuple[Trace, int]":
    from bursar.formats.trace_files import read_swf

    if processors is not None and processors < 1:
        raise InputError(f"must be at least 1, got {processors}", where="--processors")
    if width not in ("requested", "allocated"):
        raise InputError(f'expected requested or allocated, got "{width}"', where="--width")
    trace = read_swf(log, processors=processors, width=width)  # type: ignore[arg-type]
    size = processors or trace.max_processors
    if size is None and needed:
        raise InputError(
            "does not say how many processors the machine has",
            where=str(log),
            hint=f"give --processors; the widest job needs {int(trace.processors.max())}",
        )
    return trace, size or 0


def _simulate(trace: "Trace", processors: int, policy: str, **options: str) -> "SimulatedSchedule":
    from bursar.cluster.simulation import simulate

    with _progress(f"{policy} on {processors} processors") as on_progress:
        return simulate(
            trace,
            processors=processors,
            policy=policy,  # type: ignore[arg-type]
            on_progress=on_progress,
            **options,  # type: ignore[arg-type]
        )


@contextlib.contextmanager
def _progress(title: str) -> Iterator[Callable[[float], None] | None]:
    """A bar on a terminal; elsewhere nothing."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as shown:
        bar = shown.add_task(title, total=1.0)
        yield lambda share: shown.update(bar, completed=share)


def _measure(trace: "Trace", result: "SimulatedSchedule", tau: float) -> Any:
    from bursar.cluster.simulation import measure

    return measure(trace, result, tau=tau)


def _cleaning(trace: "Trace") -> list[dict[str, Any]]:
    return [
        {"reason": f.reason, "jobs": f.jobs, "dropped": f.dropped, "line": f.line}
        for f in trace.cleaning
    ]


def _draw(
    path: Path,
    trace: "Trace",
    result: "SimulatedSchedule",
    since: float | None,
    until: float | None,
) -> None:
    from bursar.report.charts import save_chart
    from bursar.report.traces import gantt_chart

    first = float(trace.submit[0]) if since is None else since
    last = float(result.finish.max()) if until is None else until
    if not first < last:
        raise InputError(f"must be after --from, {first:g}, got {last:g}", where="--until")
    chart = gantt_chart(
        result.start,
        result.finish,
        trace.processors,
        result.processors,
        [str(number) for number in trace.number.tolist()],
        first=first,
        last=last,
    )
    save_chart(chart, path)


def _check_tau(tau: float) -> None:
    if not tau > 0:
        raise InputError(f"must be positive, got {tau:g}", where="--tau")


def _check_picture(path: Path | None, option: str) -> None:
    if path is None:
        return
    from bursar.report.charts import SAVED_AS, check_chart_libraries

    if path.suffix not in SAVED_AS:
        raise InputError(
            f'a chart is saved as {", ".join(SAVED_AS)}, got "{path.suffix}"', where=option
        )
    try:
        check_chart_libraries()
    except InputError as error:
        raise error.within(option) from None
