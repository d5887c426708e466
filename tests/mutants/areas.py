"""Parts of the code that mutation testing looks at, and the tests that should notice."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Area:
    """
    A part of the code.

    Attributes
    ----------
    files
        Patterns of the files that are mutated.
    tests
        Files and folders of tests; of these, each mutant meets those that reach its line.
    share
        Mutants in the full sample.
    """

    files: tuple[str, ...]
    tests: tuple[str, ...]
    share: int


AREAS = {
    "market": Area(
        ("src/bursar/market/**/*.py",),
        ("tests/market", "tests/service/billing", "tests/runs/test_payments.py"),
        110,
    ),
    "broker": Area(
        ("src/bursar/broker/**/*.py",),
        (
            "tests/broker/directory",
            "tests/broker/matchmaking",
            "tests/broker/test_adaptive.py",
            "tests/broker/test_advice_traces.py",
            "tests/broker/test_booking.py",
            "tests/broker/test_brokered.py",
            "tests/broker/test_economy.py",
            "tests/broker/test_economy_rules.py",
            "tests/broker/test_estimates.py",
            "tests/broker/test_filling.py",
            "tests/broker/test_forecast.py",
            "tests/broker/test_justintime.py",
            "tests/broker/test_feasibility.py",
            "tests/broker/test_pilots.py",
            "tests/broker/test_rehearsal.py",
            "tests/broker/test_site_queue.py",
            "tests/broker/test_strategies.py",
            "tests/broker/test_time_scales.py",
            "tests/broker/test_traces.py",
            "tests/sites/test_owners.py",
        ),
        130,
    ),
    "queue": Area(
        (
            "src/bursar/dispatch/prefetch.py",
            "src/bursar/engine/*.py",
        ),
        (
            "tests/dispatch/test_returned_tasks.py",
            "tests/dispatch/test_prefetch.py",
            "tests/dispatch/test_queue.py",
            "tests/dispatch/test_queue_stateful.py",
            "tests/dispatch/test_server.py",
            "tests/dispatch/test_walltime.py",
            "tests/service/engine/test_scheduling.py",
        ),
        60,
    ),
    "journal": Area(
        ("src/bursar/store/*.py", "src/bursar/dispatch/journal.py"),
        (
            "tests/store",
            "tests/dispatch/test_journal_damage.py",
            "tests/dispatch/test_server.py",
            "tests/dispatch/test_journal.py",
            "tests/report/test_results.py",
        ),
        60,
    ),
    "settlement": Area(
        ("src/bursar/runs/settlement.py", "src/bursar/sites/job_settlement.py"),
        (
            "tests/runs/test_settlements.py",
            "tests/sites/test_job_settlement.py",
            "tests/sites/test_settlement_rules.py",
            "tests/sites/test_batch.py",
        ),
        40,
    ),
    "validation": Area(
        ("src/bursar/planning/validation.py",),
        ("tests/planning/test_validation.py",),
        40,
    ),
}

FULL = sum(area.share for area in AREAS.values())
"""Mutants of the full sample."""
