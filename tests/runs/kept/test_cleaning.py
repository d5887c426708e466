"""Which old runs are deleted, decided on rows; and deleting them."""

import random
from typing import Any

import pytest

from bursar.model.errors import InputError
from bursar.runs.kept.cleaning import CleaningRule, check_rule, decide

DAY = 86400.0
NOW = 100 * DAY


def row(name: str, **how: Any) -> dict[str, Any]:
    """Return the row of a run that ended well ten days ago."""
    usual = {
        "campaign": "c",
        "state": "finished",
        "created": NOW - 10 * DAY,
        "size": 5000,
        "tags": [],
        "used_by": [],
    }
    return {"run": name, **usual, **how}


def deleted(rows: list[dict[str, Any]], **rule: Any) -> list[str]:
    """Return the names of runs that go."""
    return [name for name, reason in decide(rows, CleaningRule(**rule), NOW) if not reason]


def test_every_stated_limit_must_hold() -> None:
    rows = [
        row("old", created=NOW - 40 * DAY),
        row("small", created=NOW - 40 * DAY, size=10),
        row("new", created=NOW - DAY),
    ]

    assert deleted(rows, older=30 * DAY) == ["old", "small"]
    assert deleted(rows, older=30 * DAY, larger=1000) == ["old"]
    assert deleted(rows, keep=1) == ["old", "small"]
    assert deleted(rows, names=["new"]) == ["new"]


def test_what_is_needed_stays_and_says_why() -> None:
    rows = [
        row("kept", tags=["a", "keep"]),
        row("reused", used_by=["later"]),
        row("open", state="interrupted"),
        row("latest"),
    ]

    found = dict(decide(rows, CleaningRule(names=[r["run"] for r in rows], keep=1), NOW))

    assert found == {
        "kept": "has the tag keep",
        "reused": "is reused by later",
        "open": "is interrupted",
        "latest": "is one of the latest",
    }


@pytest.mark.parametrize("seed", range(200))
def test_nothing_that_must_stay_is_ever_deleted(seed: int) -> None:
    """Random runs and rules: what goes meets each limit and none of the reasons to stay."""
    rng = random.Random(seed)
    states = ("finished", "failed", "interrupted", "running", "new", "unsettled", "damaged")
    rows = [
        row(
            f"r{n}",
            campaign=rng.choice("ab"),
            state=rng.choice(states),
            created=NOW - rng.uniform(0, 60) * DAY,
            size=rng.randrange(10_000),
            tags=rng.choice([[], ["keep"], ["x"]]),
            used_by=rng.choice([[], [], ["other"]]),
        )
        for n in range(12)
    ]
    rows.sort(key=lambda one: one["created"])
    rule = CleaningRule(
        names=rng.choice([(), [one["run"] for one in rng.sample(rows, 4)]]),
        older=rng.choice([None, 20 * DAY]),
        larger=rng.choice([None, 4000]),
        keep=rng.choice([0, 1, 3]),
    )
    gone = {name for name, reason in decide(rows, rule, NOW) if not reason}
    for one in rows:
        if one["run"] in gone:
            assert one["state"] in ("finished", "failed")
            assert "keep" not in one["tags"]
            assert not one["used_by"]
            assert rule.older is None or NOW - one["created"] >= rule.older
            assert rule.larger is None or one["size"] >= rule.larger
            assert not rule.names or one["run"] in rule.names
            later = [r for r in rows if r["campaign"] == one["campaign"]]
            assert one not in later[len(later) - rule.keep :]


@pytest.mark.parametrize("state", ["running", "new", "unsettled", "damaged"])
def test_states_that_are_never_deleted_are_refused(state: str) -> None:
    with pytest.raises(InputError, match="never deleted"):
        check_rule(CleaningRule(keep=1, states=(state,)))


def test_a_rule_must_say_something() -> None:
    with pytest.raises(InputError, match="--older"):
        check_rule(CleaningRule())
