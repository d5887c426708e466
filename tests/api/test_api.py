"""``bursar.plan``, ``bursar.run`` and what they return, as the guide tells them."""

import asyncio
import contextlib
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import bursar
from bursar import Campaign, File, Goal, Shell, Task, Workflow
from bursar.api.quote import GoalOutOfReach

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "python.md"


def squares(**goal: Any) -> Campaign:
    """The guide's own campaign: one task makes a file, the next shows it."""
    square = Task(
        id="square",
        steps=(Shell("echo $((7 * 7)) > square.txt"),),
        outputs=(File("square.txt"),),
        runtime=1.0,
    )
    show = Task(
        id="show", steps=(Shell("cat square.txt"),), inputs=(File("square.txt"),), runtime=1.0
    )
    return Campaign(name="squares", workflow=Workflow((square, show)), goal=Goal(**goal))


def running(word: str) -> list[str]:
    """Processes with a word on their command lines."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if word.encode() in path.read_bytes():
                found.append(path.parent.name)
    return found


def long_one(mark: Path) -> Campaign:
    """A campaign that says it runs, and goes on longer than any test."""
    task = Task(id="long", steps=(Shell(f"touch '{mark}'; sleep 600"),), runtime=1.0)
    return Campaign(name="long", workflow=Workflow((task,)))


# The package.


def test_importing_bursar_imports_next_to_nothing() -> None:
    """
    Names are loaded when first used: a command's help must not wait for numpy.
    """
    heavy = ["numpy", "numba", "scipy", "altair", "asyncio", "sqlite3", "lark", "msgspec"]
    heavy += ["cloudpickle", "rich", "typer", "concurrent.futures", "bursar.api", "bursar.model"]
    program = f"import sys, bursar; print([m for m in {heavy} if m in sys.modules])"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_public_names_are_there_documented_and_typed() -> None:
    """
    ``bursar.__all__`` is the surface: each name loads, says what it is, and has types.
    """
    assert bursar.__all__ == sorted(bursar.__all__)
    assert set(bursar.__all__) <= set(dir(bursar))
    for name in bursar.__all__:
        value = getattr(bursar, name)
        assert (value.__doc__ or "").strip(), name
        functions = [value] if inspect.isfunction(value) else _methods(value)
        for function in functions:
            assert (function.__doc__ or "").strip(), f"{name}.{function.__name__}"
            hints = get_type_hints(function)
            assert "return" in hints, f"{name}.{function.__name__}"
            missing = set(inspect.signature(function).parameters) - set(hints) - {"self", "cls"}
            assert not missing, f"{name}.{function.__name__}: {missing}"


def test_an_unknown_name_is_an_attribute_error() -> None:
    """
    ``hasattr`` and ``getattr`` with a default rely on it.
    """
    assert not hasattr(bursar, "no_such_name")


def _methods(value: type) -> list[Any]:
    own = vars(value).items()
    return [f for n, f in own if inspect.isfunction(f) and not n.startswith("_")]


# The guide.


def simulate(case: int, share: float = 1.0) -> int:
    """The function that the guide's snippets apply."""
    return case * 2


def test_every_snippet_of_the_guide_works(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    """
    In order, in one name space, with the files and functions they speak of.
    """
    (tmp_path / "campaign.toml").write_text(
        '[campaign]\nname = "mosaic"\n'
        '[tasks.draw]\nruntime = "1 s"\n'
        'command = "echo x > mosaic.png"\noutputs = ["mosaic.png"]\n'
    )
    names: dict[str, Any] = {"cases": range(40), "simulate": simulate}
    snippets = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len(snippets) >= 4
    before = Path.cwd()
    os.chdir(tmp_path)
    try:
        for snippet in snippets:
            exec(compile(snippet, str(GUIDE), "exec"), names)
    finally:
        os.chdir(before)

    out = capfd.readouterr().out
    assert str(2**100) in out
    assert str(sum(2 * case for case in range(40))) in out
    assert (tmp_path / "curve.html").stat().st_size > 1000
    assert names["result"].succeeded


# Planning.


def test_a_proposal_answers_everything_the_guide_says(tmp_path: Path) -> None:
    """
    Choice, reason, figures, and the curve saved in every format.
    """
    proposal = bursar.plan(squares(deadline=60))

    assert proposal.feasible
    assert proposal.chosen is not None
    assert proposal.reason
    assert proposal.counter_offers == ()
    assert json.loads(json.dumps(proposal.to_dict()))
    for suffix in (".html", ".png", ".svg"):
        proposal.save(tmp_path / f"curve{suffix}")
        assert (tmp_path / f"curve{suffix}").stat().st_size > 1000
    with pytest.raises(bursar.InputError, match=re.escape('got ".pdf"')):
        proposal.save(tmp_path / "curve.pdf")


def test_a_proposal_shows_itself_as_a_chart() -> None:
    """
    What a notebook asks for, with the arguments it gives.
    """
    bundle = bursar.plan(squares())._repr_mimebundle_(include=None, exclude=None)

    (kind,) = [kind for kind in bundle if kind.startswith("application/vnd.vegalite")]
    assert bundle[kind]["$schema"].startswith("https://vega.github.io/schema/vega-lite")
    assert "text/plain" in bundle


def test_a_goal_out_of_reach_has_counter_offers_and_starts_nothing(tmp_path: Path) -> None:
    """
    Both from the proposal and from the error; a run folder must not remain.
    """
    campaign = squares(deadline=1e-3)
    proposal = bursar.plan(campaign)

    assert not proposal.feasible
    assert proposal.chosen is None
    assert proposal.counter_offers
    with pytest.raises(bursar.Infeasible) as caught:
        bursar.run(campaign, runs=tmp_path / "runs")
    assert isinstance(caught.value, GoalOutOfReach)
    assert caught.value.quote.counter_offers == proposal.counter_offers
    assert "; in more time: " in str(caught.value)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("processors", [0, -1, 10**6])
def test_processors_out_of_range_are_refused(processors: int, tmp_path: Path) -> None:
    """
    By plan and run alike, before anything is made.
    """
    with pytest.raises(bursar.InputError, match="processors must be between 1 and"):
        bursar.plan(squares(), processors=processors)
    with pytest.raises(bursar.InputError, match="processors must be between 1 and"):
        bursar.run(squares(), processors=processors, runs=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("no-such.toml",), "no-such.toml: no such file"),
        ((squares(), "no-such.toml"), "no-such.toml: no such file"),
        ((squares(), []), "no site is given"),
        ((squares(budget=1.0, currency="EUR"),), "the budget is in EUR, the sites ask SU"),
    ],
)
def test_wrong_input_is_an_input_error(arguments: tuple[Any, ...], message: str) -> None:
    """
    Said in one line, not by a traceback from deep inside.
    """
    with pytest.raises(bursar.InputError, match=message):
        bursar.plan(*arguments)


# Running.


def test_a_run_tells_what_happened(tmp_path: Path) -> None:
    """
    Names, files, outcomes, bill and figures, as the guide has them.
    """
    result = bursar.run(squares(deadline=60), runs=tmp_path, name="mine")

    assert result.succeeded
    assert result.exit_status == 0
    assert (result.name, result.path) == ("mine", tmp_path / "mine")
    assert (result.files / "square.txt").read_text() == "49\n"
    assert [outcome.stdout for outcome in result.outcomes()] == [b"", b"49\n"]
    assert result.bill().to_dict()["total_micros"] > 0
    assert result.to_dict()["makespan_s"] > 0
    assert repr(result) == "<RunResult mine: 2 of 2 succeeded, finished>"


def test_a_taken_name_is_refused_and_its_run_unharmed(tmp_path: Path) -> None:
    """
    A second run must not write into the first.
    """
    bursar.run(squares(), runs=tmp_path, name="mine")
    before = (tmp_path / "mine" / "run.json").read_bytes()

    with pytest.raises(bursar.InputError, match='run "mine" exists already'):
        bursar.run(squares(), runs=tmp_path, name="mine")

    assert (tmp_path / "mine" / "run.json").read_bytes() == before


def test_a_failing_task_is_a_result_not_an_exception(tmp_path: Path) -> None:
    """
    Whoever runs a thousand tasks wants the other 999.
    """
    bad = Task(id="bad", steps=(Shell("exit 3"),), retries=0, runtime=1.0)
    good = Task(id="good", steps=(Shell("true"),), runtime=1.0)
    campaign = Campaign(name="half", workflow=Workflow((bad, good)))

    result = bursar.run(campaign, runs=tmp_path)

    assert not result.succeeded
    assert result.exit_status == 1
    assert [outcome.exit_code for outcome in result.outcomes()] == [3, 0]


def test_resume_goes_on_and_refuses_what_is_wrong(tmp_path: Path) -> None:
    """
    By name or folder; with another budget in the run's own currency only.
    """
    done = bursar.run(squares(), runs=tmp_path, name="mine")

    assert bursar.resume("mine", runs=tmp_path).succeeded
    again = bursar.resume(done.path, budget="3 SU")
    assert again.to_dict()["budget"] == 3.0
    assert again.to_dict()["attempts"] == 2, "what was done is not done again"
    with pytest.raises(bursar.InputError, match="the run counts in SU, got EUR"):
        bursar.resume("mine", runs=tmp_path, budget="1 EUR")
    with pytest.raises(bursar.InputError, match="negative"):
        bursar.resume("mine", runs=tmp_path, budget=-1)
    with pytest.raises(bursar.InputError, match="the last run is mine"):
        bursar.resume("other", runs=tmp_path)


def test_retry_failed_tries_again_what_failed(tmp_path: Path) -> None:
    """
    Without it a failure is final.
    """
    mark = tmp_path / "mark"
    task = Task(id="needs", steps=(Shell(f"test -e '{mark}'"),), retries=0, runtime=1.0)
    campaign = Campaign(name="needs", workflow=Workflow((task,)))
    assert not bursar.run(campaign, runs=tmp_path, name="mine").succeeded
    mark.touch()

    assert not bursar.resume("mine", runs=tmp_path).succeeded
    assert bursar.resume("mine", runs=tmp_path, retry_failed=True).succeeded


def test_run_and_resume_work_where_a_loop_runs(tmp_path: Path) -> None:
    """
    As in a notebook's cell; errors come through as well.
    """

    async def cell() -> None:
        assert bursar.run(squares(), runs=tmp_path, name="mine").succeeded
        assert bursar.resume("mine", runs=tmp_path).succeeded
        with pytest.raises(bursar.InputError, match="exists already"):
            bursar.run(squares(), runs=tmp_path, name="mine")

    asyncio.run(cell())


def test_interrupting_a_cell_stops_the_run(tmp_path: Path) -> None:
    """
    Otherwise its tasks would go on spending, out of sight; it can be resumed.
    """
    mark = tmp_path / "mark"

    def interrupt() -> None:
        while not mark.exists():
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGINT)

    async def cell() -> None:
        threading.Thread(target=interrupt).start()
        bursar.run(long_one(mark), runs=tmp_path, name="mine")

    loop = asyncio.new_event_loop()
    try:
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(cell())
    finally:
        loop.close()

    run = json.loads((tmp_path / "mine" / "run.json").read_text())
    assert run["state"] in ("failed", "interrupted")
    assert not [thread for thread in threading.enumerate() if thread.name == "bursar-run"]
    assert not running(str(mark))
