"""Every test can fail: it asserts, or calls a function that does."""

import ast
from collections.abc import Iterable
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

CHECKERS = {
    "api/test_offers.py": {"check_plan", "check_strategy"},
    "cli/test_accounts.py": {"kill_and_resume"},
    "cli/test_ledger.py": {"refuses"},
    "cli/test_settlement.py": {"check"},
    "dispatch/test_connection_limits.py": {"greet", "is_sent_away"},
    "dispatch/test_returned_tasks.py": {"_kill_at_random"},
    "formats/test_fuzz_readers.py": {"_attempt"},
    "market/test_owners_book.py": {"refuse"},
    "papers/test_catalogue.py": {"check_findings"},
    "papers/test_pages.py": {"check_documents"},
    "planning/test_slots.py": {"_same"},
    "planning/test_validation.py": {"expect"},
    "provisioning/lrm/test_shell.py": {"everything"},
    "runs/test_clock.py": {"set_clock_between_lives"},
    "store/test_crashes.py": {"lives"},
    "service/test_federation.py": {"outlive"},
    "sites/remote/test_site.py": {"nothing_is_left"},
    "sites/test_job_watch.py": {"watched"},
    "sites/test_owners.py": {"check_cycles"},
    "soak/test_soak.py": {"hold"},
}
"""Functions that assert for the tests of a file; they are defined there or imported."""

CONTRACT = {
    "provisioning/lrm/test_processes.py": {"ground_of"},
    "provisioning/lrm/test_simulated.py": {"check"},
    "provisioning/lrm/test_slurm_live.py": {"on"},
}
"""Functions that carry out one of the checks of ``provisioning/lrm/contract.py``."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def named(call: ast.Call) -> str:
    """Return the last part of the name of what is called."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def asserts(function: ast.AST, checkers: Iterable[str] = ()) -> bool:
    """
    Whether a function asserts, expects an error or a warning, or calls one of the checkers.

    Functions called ``assert_...`` count, such as those of mocks and of ``numpy.testing``.
    """
    known = {"raises", "warns", "fail", *checkers}
    return any(
        isinstance(node, ast.Assert)
        or (
            isinstance(node, ast.Call)
            and (named(node) in known or named(node).startswith("assert_"))
        )
        or (isinstance(node, ast.Raise) and "AssertionError" in ast.dump(node))
        for node in ast.walk(function)
    )


def functions(file: Path) -> list[Function]:
    tree = ast.parse(file.read_text())
    return [node for node in ast.walk(tree) if isinstance(node, Function)]


def without_assertion(file: Path, checkers: Iterable[str] = ()) -> list[str]:
    """Name the tests of a file that nothing but an unforeseen error can fail."""
    return [
        f"{file}:{function.lineno}: {function.name}"
        for function in functions(file)
        if function.name.startswith("test_") and not asserts(function, checkers)
    ]


def test_every_test_asserts() -> None:
    """A test without an assertion passes whatever the code answers."""
    found = []
    for file in sorted(TESTS.rglob("test_*.py")):
        name = str(file.relative_to(TESTS))
        found += without_assertion(file, CHECKERS.get(name, set()) | CONTRACT.get(name, set()))
    assert found == [], "assert something, or name the function that asserts in CHECKERS"


@pytest.mark.parametrize("name", CHECKERS)
def test_checkers_assert(name: str) -> None:
    """A name on the list stands for a function with an assertion in it."""
    file = TESTS / name
    imported = [
        TESTS.parent.joinpath(*node.module.split(".")).with_suffix(".py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests.")
        if node.module is not None
    ]
    made = [f for source in [file, *imported] if source.exists() for f in functions(source)]
    for checker in CHECKERS[name]:
        (function,) = (f for f in made if f.name == checker)
        assert asserts(function, CHECKERS[name] - {checker} | {"check_documents"}), checker


def test_checks_of_the_contract_assert() -> None:
    """Each is a function without parameters but the ground."""
    checks = [
        function
        for function in functions(TESTS / "provisioning" / "lrm" / "contract.py")
        if isinstance(function, ast.AsyncFunctionDef)
        and [each.arg for each in function.args.args] == ["ground"]
    ]
    assert len(checks) > 10
    assert [check.name for check in checks if not asserts(check)] == []


def test_a_test_without_assertion_is_found(tmp_path: Path) -> None:
    """Assertions of functions within, expected errors and checkers count; calls alone do not."""
    file = tmp_path / "test_x.py"
    file.write_text(
        "def test_bare():\n    check()\n"
        "def test_plain():\n    assert True\n"
        "async def test_within():\n    def inner():\n        assert True\n    inner()\n"
        "def test_error():\n    with pytest.raises(ValueError):\n        int('x')\n"
        "def test_suppressed():\n    with suppress(ValueError):\n        int('x')\n"
    )

    def names(*checkers: str) -> list[str]:
        return [line.rpartition(" ")[2] for line in without_assertion(file, checkers)]

    assert names() == ["test_bare", "test_suppressed"]
    assert names("check") == ["test_suppressed"]
