"""
Golden runs on real processors: what came out is compared, what a clock measured is not.

Runs are made by the command within this process, and by the public names; their workers are real.
"""

import json
from typing import Any

import pytest
from tests.contracts.command import CommandFolder
from tests.contracts.golden import assert_golden, assert_golden_run, check_bill

import bursar

SITES = """\
[site.here]
kind = "local"
processors = 2
unit_price = "3600 EUR/core-hour"
fixed_price = "0.25 EUR"
"""
"""One EUR a processor-second."""

ONE = SITES.replace("processors = 2", "processors = 1")


def run(folder: CommandFolder, file: str = "c.toml", *words: str, status: int = 0) -> Any:
    """Return what ``bursar run`` tells of a run."""
    words = ("run", file, "--sites", "s.toml", "--name", "r", "--json", *words)
    return folder.bursar(*words, status=status).json


@pytest.fixture
def site(folder: CommandFolder) -> CommandFolder:
    """Give a folder with a site of two processors."""
    folder.write("s.toml", SITES)
    return folder


def test_a_sweep(site: CommandFolder) -> None:
    """Two parameters, outputs by their values, a constant of the environment."""
    site.write(
        "c.toml",
        """\
[campaign]
name = "sweep"
command = "echo $UNIT {x} {word} | tee {outputs}"
[parameters]
x = { from = 1, to = 2, step = 1 }
word = ["a b", "c"]
[task]
id = "{x}-{index}"
outputs = ["made/{x}-{index}.txt"]
environment = { UNIT = "m" }
runtime = 0.05
""",
    )

    told = run(site)

    shown = site.bursar("report", "r", "--json").json
    listed = site.bursar("runs", "--json").json
    assert_golden_run("sweep", site, "r", live=True, told=told, report=shown, runs=listed)


def test_a_bag_by_the_public_names(site: CommandFolder) -> None:
    """Tasks without an order, run from Python without a file, resumed when nothing is left."""
    tasks = tuple(
        bursar.Task(id=f"t{number}", steps=(bursar.Shell(f"echo {number}"),), runtime=0.05)
        for number in range(5)
    )
    campaign = bursar.Campaign(
        name="bag", workflow=bursar.Workflow(tasks), retry=bursar.Retry(attempts=1), root=site.path
    )
    runs = site.path / "runs"

    ran = bursar.run(campaign, site.path / "s.toml", processors=2, name="r", runs=runs)

    outcomes = [
        [one.task, str(one.status), one.exit_code, one.stdout.decode()] for one in ran.outcomes()
    ]
    again = bursar.resume("r", runs=runs)
    assert (ran.name, ran.path, ran.succeeded, ran.exit_status) == ("r", runs / "r", True, 0)
    assert again.to_dict()["attempts"] == 5
    assert_golden_run("bag", site, "r", live=True, told=ran.to_dict(), outcomes=outcomes)


def test_a_workflow_with_files(site: CommandFolder) -> None:
    """Files from the campaign's folder, files between tasks, a folder as output, an order."""
    site.write("data/in.txt", "one\ntwo\n")
    site.write(
        "c.toml",
        """\
[campaign]
name = "flow"
[tasks.count]
command = "wc -l < data/in.txt | tr -d ' ' > {outputs}"
inputs = ["data/in.txt"]
outputs = ["count.txt"]
[tasks.copy]
command = "mkdir -p parts; cp data/in.txt parts/a; echo b > parts/b"
inputs = ["data/in.txt"]
outputs = ["parts"]
[tasks.join]
command = "cat {inputs} parts/b > {outputs}"
inputs = ["count.txt", "parts"]
outputs = ["joined.txt"]
[tasks.tidy]
command = ["echo", "no shell: $HOME"]
after = ["join"]
""".replace("cat {inputs} parts/b", "cat count.txt parts/a parts/b"),
    )

    told = run(site)

    assert_golden_run("workflow", site, "r", live=True, told=told)


def test_a_nimrod_plan(site: CommandFolder) -> None:
    """Copies to the node and back, a file that is filled in, and a task at the end."""
    site.write("model.skel", "size is ${size}\n")
    site.write(
        "c.pln",
        """\
parameter size integer range from 1 to 3 step 1;
parameter seed integer select oneof 7 8;
task main
    copy model.skel node:.
    substitute model.skel model.in
    node:execute cat model.in >> output
    copy node:output output.${size}
endtask
task rootfinish
    copy root:output.3 node:last
    shexec "cat last > end.txt"
    copy node:end.txt root:.
endtask
""",
    )

    told = run(site, "c.pln", "--runtime", "0.05")

    assert_golden_run("nimrod", site, "r", live=True, told=told)


def test_a_task_that_fails(site: CommandFolder) -> None:
    """Status 1: what depends on the task is skipped, others run, and its words are kept."""
    site.write(
        "c.toml",
        """\
[campaign]
name = "failing"
[tasks.first]
command = "echo begun; echo wrong >&2; exit 7"
outputs = ["never.txt"]
[tasks.second]
command = "cat never.txt"
inputs = ["never.txt"]
[tasks.lost]
command = "true"
outputs = ["absent.txt"]
[tasks.forgiven]
command = "false"
on_error = "ignore"
[tasks.other]
command = "echo other"
[retry]
attempts = 1
""",
    )

    told = run(site, status=1)

    logs = site.bursar("logs", "r", "first", "--json").json
    assert_golden_run("failing", site, "r", live=True, told=told, logs=logs)


def test_what_is_tried_again(site: CommandFolder) -> None:
    """A task that succeeds at its third attempt, and one that never does."""
    site.environment["TRIED"] = str(site.path / "tried")
    site.write(
        "c.toml",
        """\
[campaign]
name = "tries"
[tasks.third]
command = "echo x >> $TRIED; test $(wc -l < $TRIED) = 3"
[tasks.never]
command = "exit 3"
retries = 1
[retry]
attempts = 4
backoff = 0
""",
    )

    told = run(site, status=1)

    assert_golden_run("retries", site, "r", live=True, told=told)


def test_a_task_past_its_wall_limit(site: CommandFolder) -> None:
    """It is killed with what it has started, and counts as failed."""
    site.write(
        "c.toml",
        """\
[campaign]
name = "limited"
[tasks.long]
command = "sleep 60 & sleep 60"
wall_limit = 0.5
runtime = 0.1
[tasks.short]
command = "echo done"
wall_limit = 30
runtime = 0.1
[retry]
attempts = 1
""",
    )

    told = run(site, status=1)

    assert_golden_run("wall-limit", site, "r", live=True, told=told)


def test_a_budget_that_binds(folder: CommandFolder) -> None:
    """Status 4: a task that could cost more than is left does not start; more money lets it."""
    folder.write("s.toml", ONE)
    folder.write(
        "c.toml",
        """\
[campaign]
name = "poor"
[tasks.cheap]
command = "echo cheap"
runtime = 0.1
wall_limit = 20
[tasks.dear]
command = "echo dear"
after = ["cheap"]
runtime = 0.1
wall_limit = 1000
[goal]
budget = "300 EUR"
""",
    )

    refused = run(folder, status=3)
    told = run(folder, "c.toml", "--anyway", status=4)

    assert told["cost"] <= 300
    assert_golden("budget-refused", refused, folder, live=False)
    assert_golden_run("budget", folder, "r", live=True, told=told)
    words = ("run", "--resume", "r", "--budget", "2000 EUR", "--json")
    again = folder.bursar(*words).json
    assert_golden_run("budget-resumed", folder, "r", live=True, told=again)


def test_a_deadline_that_cannot_be_kept(site: CommandFolder) -> None:
    """Status 3 and nothing starts; whoever starts it all the same gets status 5."""
    site.write(
        "c.toml",
        '[goal]\ndeadline = 0.01\n[tasks.late]\ncommand = "sleep 0.05"\nruntime = 0.05\n',
    )

    refused = run(site, status=3)

    assert not (site.path / "runs").exists()
    assert_golden("deadline-refused", refused, site, live=False)
    told = run(site, "c.toml", "--anyway", status=5)
    assert_golden_run("deadline-missed", site, "r", live=True, told=told)


def test_files_of_many_copies(folder: CommandFolder) -> None:
    """Copies are brought to the site of the job, and what it makes gets a logical name."""
    catalogue = ("--catalogue", "replicas.sqlite")
    folder.write("storage/south/one", "a first line\n")
    folder.write("storage/north/two", "a second line\n")
    for place, name in (("south", "one"), ("north", "two")):
        folder.bursar(
            "replicas", "add", f"raw/{name}", f"storage/{place}/{name}", "--site", place, *catalogue
        )
    folder.write(
        "s.toml",
        "".join(
            f'[site.{name}]\nprocessors = 1\nunit_price = "3600 EUR/core-hour"\n'
            f'storage = "storage/{name}"\nattributes = {{ Place = "{name}" }}\n'
            for name in ("south", "north")
        ),
    )
    folder.write(
        "c.toml",
        """\
[campaign]
name = "replicas"
[tasks.join]
command = "cat raw/one raw/two > {outputs}"
data = ["raw/one", "raw/two"]
outputs = ["both"]
register = { both = "made/both" }
requirements = 'other.Place == "north"'
runtime = 0.1
[tasks.read]
command = "wc -l < made/both | tr -d ' ' > {outputs}"
data = ["made/both"]
outputs = ["lines"]
site = "south"
runtime = 0.1
""",
    )

    told = run(folder, "c.toml", *catalogue)

    copies = folder.bursar("replicas", "list", *catalogue, "--json").json
    copies["copies"].sort(key=lambda copy: (copy["name"], copy["url"]))
    assert_golden_run("replicas", folder, "r", live=True, told=told, replicas=copies)


def test_an_account_that_pays(site: CommandFolder) -> None:
    """The book has what the run paid, and holds nothing any more."""
    site.bursar("ledger", "open", "ann", "--currency", "EUR")
    site.bursar("ledger", "grant", "ann", "1000 EUR")
    site.write(
        "c.toml",
        '[campaign]\nname = "paid"\n[tasks.one]\ncommand = "echo 1"\nruntime = 0.1\n'
        'wall_limit = 10\n[goal]\nbudget = "400 EUR"\n',
    )

    told = run(site, "c.toml", "--account", "ann")

    balances = site.bursar("ledger", "accounts", "--json").json
    by_name = {row["name"]: row["balance_micros"] for row in balances["accounts"]}
    assert by_name["ann"] == 1_000_000_000 - round(told["cost"] * 1_000_000)
    assert_golden_run("account", site, "r", live=True, told=told)


def cube(number: int) -> int:
    if number == 5:
        raise ValueError("no five")
    print(f"cubed {number}")
    return number**3


def test_a_map_of_the_executor(site: CommandFolder) -> None:
    """Results in order, an exception where it was raised, and a bill that adds up."""
    kept = site.path / "kept"
    sites = site.path / "s.toml"

    with bursar.Executor(2, sites=sites, folder=kept, budget="900 EUR") as executor:
        values = list(executor.map(cube, range(4), chunksize=2))
        failed = executor.submit(cube, 5)
        with pytest.raises(ValueError, match="no five"):
            failed.result(60)

    assert values == [0, 1, 8, 27]
    bill = json.loads((kept / "bill.json").read_text())
    check_bill(bill)
    assert_golden("executor", {"values": values, "bill": bill}, site, live=True)
