"""What the normaliser replaces, and above all what it leaves."""

from typing import Any

import pytest
from tests.contracts.normalising import DURATIONS, MONEY, normalised

WORDS = {"/tmp/a/runs": "<runs>", "/tmp/a": "<folder>"}


def live(value: Any) -> Any:
    return normalised(value, live=True, words=WORDS)


def simulated(value: Any) -> Any:
    return normalised(value, live=False, words=WORDS)


@pytest.mark.parametrize("number", [0.25, 1, 123_456, -3])
def test_a_live_measure_becomes_a_word_and_a_simulated_one_stays(number: float) -> None:
    """An exact figure that became a word could change unseen."""
    measures = dict.fromkeys(DURATIONS | MONEY, number)

    assert set(live(measures).values()) == {"<money>", "<seconds>"}
    assert simulated(measures) == measures


@pytest.mark.parametrize("value", [0, 0.0, None, "text", True, []])
def test_nothing_and_what_is_no_number_stay(value: Any) -> None:
    """Whether something was held, paid or known at all is never hidden."""
    measures = dict.fromkeys(DURATIONS | MONEY, value)

    assert live(measures) == measures


def test_what_a_program_used_is_a_word_even_when_it_is_nothing() -> None:
    """The kernel counts in steps of its own, so a short program uses 0 s now and then."""
    assert live({"user_s": 0.0, "max_rss": 1}) == {"user_s": "<use>", "max_rss": "<use>"}
    assert simulated({"user_s": 0.5, "max_rss": 0}) == {"user_s": 0.5, "max_rss": 0}


def test_dates_are_words_in_simulated_runs_too() -> None:
    """The folder of a simulated run is made today."""
    assert simulated({"created": 1.8e9, "finished": None}) == {
        "created": "<date>",
        "finished": None,
    }


def test_numbers_of_tasks_and_limits_stay_in_live_runs() -> None:
    """Counts, attempts, exit codes, prices, limits and predictions do not depend on a clock."""
    facts = {
        "tasks": 4,
        "attempts": 2,
        "exit_code": -9,
        "unit_price": 0.5,
        "predicted_cost": 0.2,
        "predicted_makespan_s": 0.1,
        "budget": 7.0,
        "deadline_s": 60.0,
        "deadline_met": True,
        "held_micros": 12,
    }

    assert live(facts) == facts


def test_nine_digits_of_a_number_are_kept() -> None:
    """Amounts of money are whole numbers, and keep all of theirs."""
    assert simulated({"speed": 0.1 + 0.2, "held_micros": 1_234_567_890_123}) == {
        "speed": 0.3,
        "held_micros": 1_234_567_890_123,
    }


def test_texts_lose_only_what_is_of_this_machine() -> None:
    """Longer paths are replaced first, also within lists and in the middle of a text."""
    found = live(
        {
            "argv": ["bursar", "/tmp/a/runs/x", "/tmp/a/c.toml"],
            "said": "run by process 4711 at 127.0.0.1:40001",
            "digest": "sha256:" + "0f" * 32,
            "word": "deadbeef exit status 12",
        }
    )

    assert found == {
        "argv": ["bursar", "<runs>/x", "<folder>/c.toml"],
        "said": "run by process <pid> at 127.0.0.1:<port>",
        "digest": "sha256:<hash>",
        "word": "deadbeef exit status 12",
    }


def test_nested_documents_are_followed() -> None:
    """Leases and tasks of a bill lie in lists of tables."""
    bill = {"leases": [{"lease": "lease-1", "seconds": 2.0, "total_micros": 5}]}

    assert live(bill) == {
        "leases": [{"lease": "lease-1", "seconds": "<seconds>", "total_micros": "<money>"}]
    }
