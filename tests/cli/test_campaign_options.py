"""`bursar run` and `bursar simulate` take the same options, and the documentation says so."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
from tests.recording import WRITE

from bursar.cli.campaign_options import (
    REFUSED_BY_RUN,
    REFUSED_BY_SIMULATE,
    WITH_REPLAYED_RUN,
    WITH_RESUME,
)
from bursar.cli.main import app

RECORDED = """\
{"name": "w", "schemaVersion": "1.5", "workflow": {"specification": {"tasks": [
 {"name": "a", "id": "a", "parents": [], "children": []}]},
 "execution": {"makespanInSeconds": 10, "executedAt": "2020-01-01T00:00:00Z", "tasks": [
 {"id": "a", "runtimeInSeconds": 10}]}}}
"""
PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "cli.md"
BEGIN, END = "<!-- options of run, simulate and tune, as --help has them -->\n", "<!-- end -->\n"


def parameters(*words: str) -> dict[str, Any]:
    """Return the parameters of a command, by their longest option."""
    command: Any = typer.main.get_command(app)
    for word in words:
        command = command.commands[word]
    found = {max(one.opts, key=len): one for one in command.params}
    return {name: one for name, one in found.items() if name.startswith("--")}


def table() -> Iterator[str]:
    """Yield the lines of the table in the documentation."""
    yield "| option | meaning | `run` | `simulate` | `simulate --replay RUN` | `tune rank` |"
    yield "| --- | --- | --- | --- | --- | --- |"
    tuned = parameters("tune", "rank")
    for name, one in parameters("run").items():
        spelt = f"{name} {one.metavar}" if one.metavar and not one.is_flag else name
        choices = get_args(one.type_descriptor.annotation)
        if choices and not one.metavar:
            spelt = f"{name} {'|'.join(choices)}"
        cells = [
            f"no: {REFUSED_BY_RUN[name]}" if name in REFUSED_BY_RUN else "yes",
            f"no: {REFUSED_BY_SIMULATE[name]}" if name in REFUSED_BY_SIMULATE else "yes",
            "yes" if name in WITH_REPLAYED_RUN else "no",
            "yes" if name in tuned else "no",
        ]
        row = [f"`{spelt}`", " ".join(one.help.split()), *cells]
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


@pytest.mark.parametrize(
    ("command", "refused"), [("run", REFUSED_BY_RUN), ("simulate", REFUSED_BY_SIMULATE)]
)
def test_the_help_has_no_option_that_the_command_refuses(
    command: str, refused: Mapping[str, str]
) -> None:
    assert {name for name, one in parameters(command).items() if one.hidden} == set(refused)


def test_the_help_of_run_begins_with_the_options_of_the_first_week() -> None:
    """Ten options and --help, all other options in panels by their purpose."""
    first = [
        name
        for name, one in parameters("run").items()
        if one.rich_help_panel is None and not one.hidden
    ]
    assert len(first) == 10
    assert {"--sites", "--deadline", "--budget", "--resume"} < set(first)


def test_run_and_simulate_take_the_same_options() -> None:
    run, simulate = parameters("run"), parameters("simulate")

    assert list(run) == list(simulate)
    for name, one in run.items():
        other = simulate[name]
        assert (one.help, one.default, one.opts) == (other.help, other.default, other.opts)


def test_the_documented_table_is_what_help_says() -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    written, end, after = rest.partition(END)
    found = "\n".join(table()) + "\n"
    if os.environ.get(WRITE):
        PAGE.write_text(before + BEGIN + found + end + after)
    assert end
    assert written == found, f"record it anew with {WRITE}=1"


def words_for(option: str) -> tuple[str, ...]:
    """Return an option with a value of its type."""
    one = parameters("run")[option]
    if one.is_flag:
        return (option,)
    if option == "--accept":
        return (option, "time")
    values = {float: "0.1", int: "1"}
    return (option, values.get(one.type_descriptor.annotation, "cost"))


@pytest.mark.parametrize(
    ("command", "option", "reason"),
    [
        *(("run", option, reason) for option, reason in REFUSED_BY_RUN.items()),
        *(("simulate", option, reason) for option, reason in REFUSED_BY_SIMULATE.items()),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_in_one_line(
    folder: Any, command: str, option: str, reason: str
) -> None:
    done = folder.bursar(command, "c.toml", *words_for(option), status=2)

    assert done.stderr.splitlines() == [f"bursar: {option}: {reason}"]
    assert done.stdout == ""


def test_an_option_from_the_environment_refuses_nothing(
    folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The book of accounts is of no use to a simulation, and is often set for all commands."""
    monkeypatch.setenv("BURSAR_BOOK", "some.book")
    folder.write("c.toml", '[campaign]\nname = "c"\n[tasks.a]\ncommand = "true"\nruntime = 1\n')

    assert folder.json("simulate", "c.toml")["succeeded"] == 1


@pytest.mark.parametrize(
    ("words", "option", "companions"),
    [
        (("simulate", "--replay", "r", "--deadline", "5"), "--replay", WITH_REPLAYED_RUN),
        (("run", "--resume", "r", "--catalogue", "x"), "--resume", WITH_RESUME),
    ],
)
def test_what_does_not_go_with_a_past_run_is_refused(
    folder: Any, words: tuple[str, ...], option: str, companions: tuple[str, ...]
) -> None:
    done = folder.bursar(*words, status=2)

    assert done.stderr.startswith(f"bursar: {option}: goes with ")
    assert all(one in done.stderr for one in companions)


def test_a_past_run_is_replayed_in_simulated_time_only(folder: Any) -> None:
    assert "bursar simulate --replay RUN" in folder.bursar("run", "--replay", "r", status=2).stderr


def test_a_plan_is_searched_and_placed_as_stated(folder: Any) -> None:
    """A run follows the method and the scheduler that are stated, as a simulation does."""
    folder.write("c.toml", '[campaign]\nname = "c"\n[tasks.a]\ncommand = "true"\nruntime = 0.1\n')
    how = ("--method", "heft", "--scheduler", "minmin", "--json")
    for command in ("run", "simulate"):
        folder.bursar(command, "c.toml", "--name", command, *how)

    stored = [
        (folder.path / "runs" / name / "plan.json").read_text() for name in ("run", "simulate")
    ]
    assert all('"method":"heft","scheduler":"minmin"' in text for text in stored)


@pytest.mark.parametrize("command", ["run", "simulate"])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--method", "auto", "--provisioning", "dynamic"),
            "bursar: method: chooses what a plan buys, and a pool follows none",
        ),
        (
            ("--scheduler", "heft", "--strategy", "cost"),
            "bursar: scheduler: places the tasks of a plan, and a strategy follows none",
        ),
        (
            ("--method", "heft", "--choice", "best"),
            "bursar: method: chooses what a plan buys, and the broker follows none",
        ),
        (
            ("--out-of-reach", "fit"),
            "bursar: out-of-reach: says what a strategy does, and a plan brings the processors",
        ),
    ],
)
def test_an_option_that_the_policy_does_not_use_is_refused(
    folder: Any, command: str, words: tuple[str, ...], said: str
) -> None:
    """Also where the stated value is the default: nothing that is stated is without effect."""
    folder.write("c.toml", '[campaign]\nname = "c"\n[tasks.a]\ncommand = "true"\nruntime = 0.1\n')

    refused = folder.bursar(command, "c.toml", *words, status=2)

    assert refused.stderr.startswith(said)


def test_a_recorded_workflow_is_replayed_alike(folder: Any) -> None:
    """Stand-ins take the recorded times, scaled, in a run and in simulated time."""
    folder.write("w.json", RECORDED)
    scale = ("w.json", "--replay", "0.01")

    simulated = folder.json("simulate", *scale)

    assert simulated["makespan_s"] == pytest.approx(0.1, rel=0.5)
    assert folder.json("run", *scale)["succeeded"] == simulated["succeeded"]
