"""Kernels run as plain Python while questions are small, and as machine code otherwise."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bursar import compiling
from bursar.compiling import PLAIN_SECONDS, SMALL, Kernel, compiled, compiled_part


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
    monkeypatch.setattr(compiling, "_spent", PLAIN_SECONDS)
    assert total(np.ones(3)) == 6.0
    assert total._compiled is not None


def test_large_calls_are_compiled_at_once(fresh: None) -> None:
    """However little time was spent before; arrays in tuples count, too."""
    assert total(np.ones(SMALL + 1)) == 2.0 * (SMALL + 1)
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
