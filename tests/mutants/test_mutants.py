"""The driver of mutation testing: what it changes, what it draws, and that it notices."""

import ast
from pathlib import Path

import pytest

pytest.importorskip("mutmut", reason="make mutants installs it")
pytest.importorskip("coverage")

from tests.mutants.areas import AREAS, FULL
from tests.mutants.mutations import mutants, mutated, sample
from tests.mutants.reached_tests import reaching
from tests.mutants.rounds import Seen, judge

SOURCE = '''\
LIMIT = 5


def widest(a: int, b: int | None = None) -> int:
    """The larger of two."""
    if b is None:
        return a
    return max(a, b) + 1 - 1


def unused(a: int) -> bool:
    return not a
'''

TESTS = """\
from small import widest


def test_widest():
    assert widest(3, 4) == 4
    assert widest(5) == 5
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A repository of one module and one test."""
    for name, text in (("src/small.py", SOURCE), ("tests/test_small.py", TESTS)):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    return tmp_path


def test_functions_are_mutated_and_nothing_else(copy: Path) -> None:
    """Neither constants of the module, nor annotations, nor what is said about a function."""
    found = [(m.line, m.before, m.after) for m in mutants("all", copy, "src/small.py")]
    assert (6, "is", "is not") in found
    assert (8, "max(a, b)", "min(a, b)") in found
    assert (12, "not a", "a") in found
    assert {line for line, *_ in found} == {6, 8, 12}
    for number in range(len(found)):
        ast.parse(mutated(SOURCE, number))


def test_the_sample_stays_as_it_is_when_other_code_changes(copy: Path) -> None:
    areas = {"all": ["src/*.py"]}
    before = sample(copy, areas, {"all": 4}, 7)
    assert len({m.key for m in before}) == 4
    (copy / "src/small.py").write_text("def first(x):\n    return x\n\n\n" + SOURCE)
    after = sample(copy, areas, {"all": 4}, 7)
    assert [m.key for m in after] == [m.key for m in before]
    assert [m.line for m in after] == [m.line + 4 for m in before]
    assert [m.key for m in sample(copy, areas, {"all": 4}, 8)] != [m.key for m in before]


def test_a_mutant_meets_the_tests_that_reach_its_statement() -> None:
    seen = Seen(
        seconds={"slow": 3.0, "quick": 0.1, "other": 0.2},
        lines={"src/small.py": {"1": [], "6": ["slow"], "8": ["slow", "quick"], "12": ["other"]}},
        modules=[],
    )
    assert reaching(SOURCE, "src/small.py", 8, seen, 9.0) == ["quick", "slow"]
    assert reaching(SOURCE, "src/small.py", 8, seen, 1.0) == ["quick"]
    assert reaching(SOURCE, "src/small.py", 6, seen, 9.0) == ["slow"]
    assert reaching(SOURCE, "src/small.py", 1, seen, 9.0) == ["quick", "other", "slow"]
    assert reaching(SOURCE, "src/absent.py", 6, seen, 9.0) == []


def test_a_mutant_that_a_test_notices_is_killed_and_another_survives(copy: Path) -> None:
    """The file is afterwards what it was."""
    found = mutants("all", copy, "src/small.py")
    verdicts = {
        m.before: judge(
            copy,
            m.path,
            mutated(SOURCE, m.number),
            ["tests/test_small.py::test_widest"],
            60.0,
            copy / "log",
        )
        for m in found
        if m.before in ("max(a, b)", "not a")
    }
    assert verdicts == {"max(a, b)": "killed", "not a": "survived"}
    assert (copy / "src/small.py").read_text() == SOURCE


def test_areas_are_there() -> None:
    """A folder that was renamed would leave its mutants untested."""
    root = Path(__file__).parents[2]
    for area in AREAS.values():
        assert all(any(root.glob(pattern)) for pattern in area.files)
        assert all((root / tests).exists() for tests in area.tests)
    assert FULL >= 400
