"""Kernels run as plain Python while questions are small, and as machine code otherwise."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bursar import compiling
from bursar.compiling import LARGE, PLAIN_SECONDS, Kernel, compiled, compiled_part

ROOT = Path(__file__).parent.parent


@compiled_part
def _double(x: float) -> float:
    return 2.0 * x


@compiled
def total(values: np.ndarray, power: int = 1) -> float:
    """Sum of doubled powers."""
    found = 0.0
    for value in values:
        found += _double(value**power)
    return found


@compiled
def is_even(n: int) -> bool:
    """In a circle with :func:`is_odd`."""
    return True if n == 0 else is_odd(n - 1)


@compiled
def is_odd(n: int) -> bool:
    """In a circle with :func:`is_even`."""
    return False if n == 0 else is_even(n - 1)


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has run no kernel yet."""
    monkeypatch.setattr(compiling, "_spent", 0.0)
    for kernel in (total, _double):
        kernel._making.clear()
        kernel._compiled = kernel._plain = None


def test_both_forms_agree(fresh: None) -> None:
    """Also where kernels call each other, in a circle too."""
    values = np.arange(10.0)
    assert total.plain(values, 2) == total.compiled(values, 2) == 570.0
    assert is_even.plain(8) is True
    assert is_odd.plain(8) is False


def test_small_calls_are_plain_until_the_time_for_that_is_spent(
    fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of all kernels together counts."""
    assert total(np.ones(3)) == 6.0
    assert total._compiled is None
    assert 0.0 < compiling._spent < PLAIN_SECONDS
    monkeypatch.setattr(compiling, "_spent", compiling.PATIENCE)
    assert total(np.ones(3)) == 6.0
    assert total._compiled is not None


def test_large_calls_are_compiled_at_once(fresh: None) -> None:
    """However little time was spent before; arrays in tuples count, too."""
    assert total(np.ones(LARGE + 1)) == 2.0 * (LARGE + 1)
    assert total._compiled is not None
    assert compiling._elements((1, (np.ones(3), (np.ones(4),)), "x")) == 7


def test_a_kernel_says_what_its_function_says() -> None:
    assert isinstance(total, Kernel)
    assert (total.__name__, total.__doc__) == ("total", "Sum of doubled powers.")


def test_kernels_run_without_numba(tmp_path: Path) -> None:
    """Large questions, too: slowly, with the same results."""
    program = (
        "import sys; sys.modules['numba'] = None\n"
        "import numpy as np\n"
        "from tests.test_compiling import total\n"
        "print(total(np.ones(100_000)))"
    )
    said = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
    ).stdout
    assert said == "200000.0\n"


SQUARES = (
    "import numpy as np\n"
    "from tests.test_compiling import total\n"
    "for _ in range(2): total(np.ones(100_000))"
)


def on_a_terminal(program: str, folder: Path) -> str:
    """Return what a program prints on a terminal, with machine code kept in a folder."""
    terminal, end = pty.openpty()
    environment = os.environ | {"NUMBA_CACHE_DIR": str(folder)}
    subprocess.run([sys.executable, "-c", program], stderr=end, cwd=ROOT, env=environment)
    os.close(end)
    try:
        return os.read(terminal, 10_000).decode()
    except OSError:  # nothing was written, and the other end is closed
        return ""
    finally:
        os.close(terminal)


@pytest.mark.ci
def test_a_terminal_is_told_once_that_code_is_compiled(tmp_path: Path) -> None:
    """And not told when the code is on disk."""
    assert on_a_terminal(SQUARES, tmp_path).splitlines() == [compiling.COMPILING]
    assert on_a_terminal(SQUARES, tmp_path) == ""


@pytest.mark.ci
def test_what_is_no_terminal_is_told_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SQUARES],
        cwd=ROOT,
        env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        check=True,
    )
    assert done.stderr == b""


NEITHER = "import sys; sys.modules['numba'] = sys.modules['llvmlite'] = None\n"
AT_ONCE = "from bursar.compiling import prefer_machine_code; prefer_machine_code()\n"


def printed(program: str, folder: Path = ROOT) -> str:
    """Standard output of a Python program, which has to succeed without a warning."""
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def command_line(*arguments: str) -> str:
    """Return a program that runs a command of Bursar."""
    return (
        f"import sys; sys.argv[1:] = {list(arguments)!r}\nfrom bursar.cli.main import main; main()"
    )


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param("fcfs", marks=pytest.mark.ci),
        "easy",
        pytest.param("conservative", marks=pytest.mark.ci),
    ],
)
def test_batch_schedulers_are_the_same_in_both_forms(policy: str) -> None:
    """Also the types of what they return."""
    program = (
        "from bursar.cluster.machine import Machine\n"
        f"machine = Machine(4, {policy!r})\n"
        "for n in range(40): machine.submit(1 + n % 4, 10.0, runtime=5.0 + n % 7, at=float(n))\n"
        "machine.run(); print(machine.jobs.start[:40].tolist(), repr(machine.now))"
    )

    assert printed(NEITHER + program) == printed(AT_ONCE + program)


@pytest.mark.parametrize(
    "scheduler",
    [
        "heft",
        pytest.param("greedy", marks=pytest.mark.ci),
        pytest.param("minmin", marks=pytest.mark.ci),
        pytest.param("maxmin", marks=pytest.mark.ci),
        pytest.param("list", marks=pytest.mark.ci),
        pytest.param("list-cost", marks=pytest.mark.ci),
    ],
)
def test_schedules_are_the_same_in_both_forms(scheduler: str) -> None:
    """Start, finish and payment, to the last bit."""
    program = (
        "import numpy as np\n"
        "from tests.kernels import small_sites, small_workflow\n"
        "from bursar.planning.policy import PlacementPolicy\n"
        "from bursar.planning.problem import build_problem\n"
        "from bursar.planning.schedulers import schedule\n"
        "problem = build_problem(small_workflow(12), small_sites())\n"
        f"s = schedule(problem, np.array([2, 1]), PlacementPolicy(scheduler={scheduler!r}))\n"
        "print(s.site.tolist(), s.start.tolist(), s.finish.tolist(), s.paid.tolist())"
    )

    assert printed(NEITHER + program) == printed(AT_ONCE + program)


def test_a_plan_without_numba_is_the_same() -> None:
    """To the last digit of each makespan, cost and bound."""
    plan = command_line(
        "plan", "examples/mosaic/mosaic.toml", "--sites", "examples/sites.toml", "--json"
    )

    assert printed(NEITHER + plan) == printed(AT_ONCE + plan)


EXTRAS = ("numba", "llvmlite", "scipy", "altair", "vl_convert")
ABSENT = f"import sys; sys.modules.update(dict.fromkeys({EXTRAS}))\n"


@pytest.fixture
def campaign(tmp_path: Path) -> Path:
    """A folder with a campaign, sites and a log of a cluster."""
    (tmp_path / "c.toml").write_text(
        '[campaign]\nname = "c"\n[tasks.a]\ncommand = "true"\nruntime = "1 s"\n'
    )

    (tmp_path / "slots.toml").write_text(
        '[site.a]\nkind = "advertised"\nprocessors = 2\ncurrency = "EUR"\n'
        '[[site.a.slot]]\nstart = 0\nduration = "1 min"\nprocessors = 2\n'
        'unit_price = "1 EUR/core-hour"\n'
    )
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("plan", "c.toml", "--json"), marks=pytest.mark.ci),
        pytest.param(("simulate", "c.toml", "--json"), marks=pytest.mark.ci),
        ("run", "c.toml", "--json"),
        pytest.param(("plan", "c.toml", "--html", "plan.html"), marks=pytest.mark.ci),
        ("serve", "--help"),
    ],
    ids=" ".join,
)
def test_commands_need_no_extra(campaign: Path, words: tuple[str, ...]) -> None:
    """Neither Numba, SciPy nor what draws charts; each command ends well and says something."""
    assert printed(ABSENT + command_line(*words), campaign)


def test_a_report_needs_no_extra(campaign: Path) -> None:
    """Made by the run, and made again."""
    printed(ABSENT + command_line("run", "c.toml", "--json"), campaign)
    (run,) = (campaign / "runs").iterdir()
    (run / "report.html").unlink()

    printed(ABSENT + command_line("report", run.name), campaign)

    assert (run / "report.html").read_text().startswith("<!doctype html>")


@pytest.mark.ci
def test_a_plan_of_slots_without_scipy_says_what_is_missing(campaign: Path) -> None:
    """The plan is there, its least cost is that of any makespan, and a note names the extra."""
    plan = command_line("plan", "c.toml", "--sites", "slots.toml", "--json")

    without, whole = (json.loads(printed(which + plan, campaign)) for which in (ABSENT, ""))

    assert without["feasible"]
    assert any("bursar[bounds]" in note for note in without["notes"])
    assert not any("bursar[bounds]" in note for note in whole["notes"])
    for poor, good in zip(without["front"], whole["front"], strict=True):
        assert poor["cost"] == good["cost"]
        assert poor["cost_bound"] <= good["cost_bound"]


@pytest.mark.parametrize("absent", ["altair", "vl_convert"])
def test_pictures_name_the_extra_that_draws_them(campaign: Path, absent: str) -> None:
    """One line and a hint, exit status 2, no traceback."""
    program = f"import sys; sys.modules[{absent!r}] = None\n" + command_line(
        "plan", "c.toml", "--html", "plan.png"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], cwd=campaign, capture_output=True, text=True
    )

    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"bursar: charts need the package {absent}, which is not installed",
        "hint: pip install 'bursar[charts]'",
    ]


@pytest.mark.parametrize(
    "value",
    [
        np.zeros((3, 5)),
        np.zeros((1, 5), dtype=np.int64),
        np.asfortranarray(np.zeros((3, 5))),
        np.zeros((6, 6))[::2, ::2],
        np.frombuffer(b"\0" * 8),  # may not be written
        np.zeros(7, dtype=np.bool_),
        np.zeros(0),
    ],
)
def test_examples_have_the_types_of_values(value: np.ndarray) -> None:
    """Else the process in the background compiles for types that nobody asks for."""
    import numba

    values = (value, 3, 2.5, True, (value, 1))
    found = compiling._examples(values)
    assert [*map(numba.typeof, found)] == [*map(numba.typeof, values)]


KEPT = """\
import sys, time
import numpy as np
from bursar import compiling
from bursar.planning.kernels import ranks
compiling.PLAIN_SECONDS, compiling.PATIENCE = 0.0, float(sys.argv[1])
order = np.arange(3)
whole = np.int64
call = lambda: ranks.heads_and_tails(np.ones(3), order, np.zeros(4, whole), np.zeros(0, whole))
before = call()
kernel = ranks.heads_and_tails
said = [kernel._compiled is not None]
if compiling._compiler is not None:
    said.append(compiling._compiler.wait())
after = call()
said.append(kernel._compiled is not None)
assert all((a == b).all() for a, b in zip(before, after))
print(*said)
"""


@pytest.mark.ci
def test_code_that_is_not_on_disk_is_compiled_in_the_background(tmp_path: Path) -> None:
    """Plain at first, machine code once the process has ended, and at once in the next command."""

    def told(patience: str) -> str:
        command = [sys.executable, "-c", KEPT, patience]
        kept = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
        done = subprocess.run(command, cwd=ROOT, env=kept, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert told("1000") == "False 0 True"
    assert told("1000") == "True True"


@pytest.mark.ci
def test_whoever_has_waited_long_enough_compiles_by_itself(tmp_path: Path) -> None:
    """A process in the background may be starved by others."""
    command = [sys.executable, "-c", KEPT, "0"]
    kept = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=kept, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True True"
