"""
Golden runs in simulated time: each figure is compared exactly, and money to the micro-unit.

Every way to get processors, every rule by which a pool asks for them and gives them back, every
strategy that buys at changing prices, and the broker with files of many copies.
"""

from typing import Any

import pytest
from tests.contracts.command import CommandFolder
from tests.contracts.golden import assert_golden, assert_golden_run

LOG = "\n".join(
    f"{number} {submitted} -1 {seconds} {width} -1 -1 {width} {asked} -1 1 1 1 1 1 1 -1 -1"
    for number, (submitted, seconds, width, asked) in enumerate(
        [
            (0, 300, 3, 400),
            (20, 150, 2, 200),
            (40, 100, 6, 150),
            (60, 90, 1, 90),
            (110, 60, 2, 120),
            (130, 40, 4, 60),
            (150, 200, 1, 300),
        ],
        1,
    )
)
"""Jobs of other users: submission, run time, processors and the time that they asked for."""

WORKFLOW = """\
[campaign]
name = "steps"
[parameters]
x = { from = 1, to = 6, step = 1 }
[tasks.make]
id = "make-{x}"
command = "true"
runtime = "{x}0s"
outputs = ["{x}.txt"]
[tasks.gather]
command = "true"
inputs = [{ from = "make" }]
processors = 2
runtime = "15s"
"""

CLUSTER = """\
[site.cluster]
kind = "simulated"
processors = 8
trace = "log.swf"
at = 100
unit_price = "2 SU/core-hour"
fixed_price = "0.01 SU"
"""

BAG = """\
[campaign]
name = "bag"
command = "true"
[parameters]
x = { from = 1, to = 10, step = 1 }
[task]
id = "x{x}"
runtime = "10m"
"""

MARKET = """\
[site.cheap]
processors = 1
unit_price = "1 SU/core-hour"
[[site.cheap.price]]
kind = "advance"
steps = [["30m", 0.75]]
[site.fast]
processors = 2
speed = 2.0
unit_price = "5 SU/core-hour"
[[site.fast.price]]
kind = "calendar"
zone = "UTC"
hours = "00:00-01:00"
factor = 2.0
[[site.fast.price]]
kind = "loyalty"
steps = [[1, 0.5]]
[site.other]
processors = 1
unit_price = "2 SU/core-hour"
fixed_price = "0.05 SU"
[[site.other.price]]
kind = "demand"
points = [[0.0, 0.8], [1.0, 2.0]]
[[site.other.price]]
kind = "group"
groups = ["physics"]
factor = 0.9
[customer]
groups = ["physics"]
"""


def simulate(folder: CommandFolder, *words: str, name: str = "r", status: int = 0) -> Any:
    """Return what a simulation tells of a run that is kept."""
    words = ("simulate", "c.toml", "--sites", "s.toml", "--name", name, "--json", *words)
    return folder.bursar(*words, status=status).json


@pytest.fixture
def cluster(folder: CommandFolder) -> CommandFolder:
    """Give a folder with a workflow and a cluster on which others work."""
    folder.write("log.swf", LOG + "\n")
    folder.write("c.toml", WORKFLOW)
    folder.write("s.toml", CLUSTER)
    return folder


@pytest.fixture
def market(folder: CommandFolder) -> CommandFolder:
    """Give a folder with a bag and owners whose prices change."""
    folder.write("c.toml", BAG)
    folder.write("s.toml", MARKET)
    return folder


def requests_of(folder: CommandFolder) -> Any:
    return folder.bursar("pilots", "r", "--json").json


@pytest.mark.parametrize("way", ["planned", "dynamic", "best-effort", "queued", "either"])
def test_each_way_to_get_processors(cluster: CommandFolder, way: str) -> None:
    """The same workflow on the same loaded cluster, by each way of provisioning."""
    method = {"planned": "auto", "queued": "heft", "either": "heft"}.get(way)
    stated = () if method is None else ("--method", method)
    told = simulate(cluster, "--provisioning", way, *stated)

    requests = requests_of(cluster)
    assert_golden_run(f"by-{way}", cluster, "r", live=False, told=told, pilots=requests)


@pytest.mark.parametrize(
    "policy",
    [
        "adaptive",
        "optimal",
        "one-at-a-time",
        "all-at-once",
        "additive",
        "exponential",
        "array",
        "node-range",
    ],
)
def test_each_policy_of_acquisition(cluster: CommandFolder, policy: str) -> None:
    """What is asked for, when it came and what it cost."""
    pool = f'[site.cluster.pool]\nacquisition = "{policy}"\nmost = 5\nlongest = "2m"\n'
    cluster.write("s.toml", CLUSTER + pool)
    told = simulate(cluster, "--provisioning", "dynamic")

    requests = requests_of(cluster)
    assert_golden_run(f"acquired-{policy}", cluster, "r", live=False, told=told, pilots=requests)


@pytest.mark.parametrize("policy", ["adaptive", "idle", "no-tasks", "queue"])
def test_each_policy_of_release(cluster: CommandFolder, policy: str) -> None:
    """When processors go back, and what they idled."""
    pool = f'[site.cluster.pool]\nrelease = "{policy}"\nidle = "8s"\nbelow = 2\n'
    cluster.write("s.toml", CLUSTER + pool)
    told = simulate(cluster, "--provisioning", "dynamic")

    requests = requests_of(cluster)
    assert_golden_run(f"released-{policy}", cluster, "r", live=False, told=told, pilots=requests)


@pytest.mark.parametrize(
    "strategy", ["adaptive", "time", "cost", "none", "cost-time", "conservative-time"]
)
def test_each_strategy_at_the_market(market: CommandFolder, strategy: str) -> None:
    """Where each job was bought, when, and at which price, within deadline and budget."""
    goal = ("--deadline", "70m", "--budget", "4 SU", "--anyway")
    output = market.bursar(
        *("simulate", "c.toml", "--sites", "s.toml", "--name", "r", "--json"),
        *("--strategy", strategy, *goal),
        status=None,
    )

    assert_golden_run(
        f"bought-{strategy}", market, "r", live=False, status=output.status, told=output.json
    )


def test_a_plan_at_the_market(market: CommandFolder) -> None:
    """What is bought at once, as a plan, and what planning offered."""
    goal = ("--trade-off", "0.5", "--method", "heft")
    # A plan is made for this moment: prices by the hour of the day would change with it.
    before, _, after = MARKET.partition('kind = "calendar"')
    always = before.removesuffix("[[site.fast.price]]\n") + after.partition("factor = 2.0\n")[2]
    market.write("always.toml", always)
    proposal = market.bursar("plan", "c.toml", "--sites", "always.toml", "--json", *goal).json
    told = simulate(market, *goal)

    assert_golden_run("bought-plan", market, "r", live=False, proposal=proposal, told=told)


def test_a_budget_that_binds(market: CommandFolder) -> None:
    """Status 4: as many jobs as the budget covers, and never more money than that."""
    told = simulate(market, "--budget", "1 SU", "--strategy", "cost", "--anyway", status=4)

    assert told["cost"] <= 1
    assert_golden_run("short-of-budget", market, "r", live=False, told=told)


def test_a_deadline_out_of_reach(market: CommandFolder) -> None:
    """Status 3 and nothing starts; counter-offers say what could be had."""
    told = simulate(market, "--deadline", "5m", status=3)

    assert not (market.path / "runs").exists()
    assert_golden("out-of-reach", told, market, live=False)


def test_a_deadline_that_is_missed(cluster: CommandFolder) -> None:
    """Status 5: a run that was started all the same goes on to its end."""
    goal = ("--deadline", "70s", "--anyway", "--method", "heft")
    told = simulate(cluster, *goal, status=5)

    assert_golden_run("late", cluster, "r", live=False, told=told)


def test_estimates_that_are_wrong_and_attempts_that_fail(cluster: CommandFolder) -> None:
    """The draws of a seed, the attempts that were lost, and what is planned again."""
    words = ("--spread", "0.4", "--failures", "0.2", "--seed", "3", "--method", "heft")
    output = cluster.bursar(
        *("simulate", "c.toml", "--sites", "s.toml", "--name", "r", "--json", *words), status=None
    )

    assert_golden_run("by-chance", cluster, "r", live=False, status=output.status, told=output.json)


@pytest.mark.parametrize("choice", ["completion", "best", "stochastic"])
def test_jobs_are_matched_to_sites_and_their_files_come(folder: CommandFolder, choice: str) -> None:
    """Requirements, ranks, copies of logical files and links decide where a job runs."""
    folder.write("storage/south/events/one", "1" * 1000)
    folder.write("storage/north/events/two", "2" * 500)
    for site, name in (("south", "events/one"), ("north", "events/two")):
        folder.bursar(
            *("replicas", "add", name, f"storage/{site}/{name}", "--site", site),
            *("--catalogue", "replicas.sqlite"),
        )
    folder.write(
        "c.toml",
        """\
[campaign]
name = "analysis"
[parameters]
run = ["one", "two"]
case = [1, 2]
[tasks.analyse]
id = "{run}-{case}"
command = "true"
data = ["events/{run}"]
runtime = 20
rank = "other.FreeProcessors"
[tasks.sum]
command = "true"
requirements = 'other.System == "NEW"'
after = ["analyse"]
runtime = 5
""",
    )
    folder.write(
        "s.toml",
        """\
[site.south]
processors = 1
unit_price = "1 EUR/core-hour"
storage = "storage/south"
attributes = { System = "OLD" }
[site.north]
processors = 2
unit_price = "2 EUR/core-hour"
storage = "storage/north"
attributes = { System = "NEW" }
[[link]]
from = "south"
to = "north"
bandwidth = "100 B/s"
""",
    )
    words = ("--choice", choice, "--catalogue", "replicas.sqlite", "--seed", "5")
    told = simulate(folder, *words)
    weighed = folder.bursar("why", "r", "one-2", "--json").json

    assert_golden_run(f"matched-{choice}", folder, "r", live=False, told=told, why=weighed)
