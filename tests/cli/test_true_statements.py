"""What the command says about a run agrees with what happened."""

import re
import signal
import time
from typing import Any

import pytest


def test_a_deadline_is_open_while_tasks_are_left_and_time_is(folder: Any) -> None:
    """An interrupted run with nothing done has met nothing, and misses what has passed."""
    begun = folder.path / "begun"
    folder.write(
        "c.toml",
        f'[tasks.long]\ncommand = "touch {begun}; sleep 60"\n[goal]\ndeadline = "4 s"\n',
    )
    process = folder.start("run", "c.toml")
    folder.until(begun.exists, process)
    process.send_signal(signal.SIGINT)
    told, _ = process.communicate()

    assert process.returncode == 130
    assert re.search(r"deadline +4 s +\(open\)", told), told
    assert folder.json("report", folder.run.name)["deadline_met"] is None
    time.sleep(4)
    assert folder.json("report", folder.run.name)["deadline_met"] is False


@pytest.mark.ci
def test_to_retry_failures_later_does_not_miss_a_deadline_that_was_met(folder: Any) -> None:
    """All tasks had ended in time; what the user asks for afterwards is beside the deadline."""
    mended = folder.path / "mended"
    folder.write(
        "c.toml",
        f'[tasks.first]\ncommand = "test -e {mended} && echo now"\n'
        '[tasks.second]\ncommand = "true"\nafter = ["first"]\n'
        '[retry]\nattempts = 1\n[goal]\ndeadline = "5 s"\n',
    )
    first = folder.json("run", "c.toml", status=1)
    mended.touch()
    time.sleep(5)
    again = folder.json("run", "--resume", folder.run.name, "--retry-failed")

    assert first["deadline_met"] is True
    assert again["succeeded"] == 2
    assert again["deadline_met"] is True


@pytest.mark.ci
def test_spent_and_held_stay_within_the_budget_on_screen(folder: Any) -> None:
    """What a lease has accrued counts as spent and no longer as held."""
    folder.write(
        "s.toml",
        '[site.here]\nkind = "local"\nprocessors = 1\nunit_price = "3600 EUR/core-hour"\n',
    )
    folder.write(
        "c.toml",
        '[tasks.one]\ncommand = "sleep 5"\nruntime = "5 s"\n[goal]\nbudget = "9 EUR"\n',
    )
    told = folder.bursar("run", "c.toml", "--sites", "s.toml").stderr
    lines = re.findall(r"spent ([\d.]+) EUR, held ([\d.]+), budget ([\d.]+)", told)

    assert lines, told
    for spent, held, budget in lines:
        assert float(spent) > 0
        assert float(spent) + float(held) <= float(budget) * 1.0001


@pytest.mark.ci
def test_a_run_all_of_whose_results_were_there_has_met_its_deadline(folder: Any) -> None:
    """Nothing runs, and nothing is late."""
    folder.write("c.toml", '[tasks.one]\ncommand = "true"\n[goal]\ndeadline = "1 h"\n')
    folder.json("run", "c.toml")
    again = folder.json("run", "c.toml")

    assert again["makespan_s"] in (0, None)
    assert again["deadline_met"] is True
