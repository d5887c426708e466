"""OptorSim's configuration files, those of the CMS testbed and broken ones."""

import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.thoroughness import examples

from bursar.model.errors import InputError
from bursar_papers.optorsim.background import STEPS, read_background, read_measured
from bursar_papers.optorsim.grid_configuration import read_grid
from bursar_papers.optorsim.jobs import read_jobs
from bursar_papers.optorsim.parameters import read_parameters

MEGABIT = 125_000.0

GRID = """\
# workers, kSI2000, storage elements, sizes, links
# Sites are 0) North 1) South pole 2)Hub
4 0.5 2 1000 50. 0. 0. 10.
0 0 1 70 0. 0. 20.
0 0 0 10. 20. 5.
"""

JOBS = """\
\\begin{filetable}
f0 1000 7
f1 500 8  # the small one
\\end
\\begin{jobtable}
read f0 f1
idle
\\end
\\begin{cescheduletable}
0 read idle
\\end
\\begin{jobselectionprobability}
read 0.75
idle 0.25
\\end
\\begin{jobexecutiontime}
read 10 0.5
\\end
\\begin{filesetfraction}
read 0.5
\\end
"""

DAY = "".join(f"{k / 2:4.1f},{0.5 + k / 200:.3f},0.125\n" for k in range(STEPS))

PARAMETERS = """\
grid.configuration.file = examples/grid.conf
job.configuration.file = jobs.conf
bandwidth.configuration.file = bandwidths.conf
number.jobs = 100
job.delay = 2500
background.bandwidth = yes
data.directory = examples/data/
default.background = day.dat
time.of.day = 8.5
initial.file.distribution = 0,1
"""


@pytest.fixture
def testbed(data: Path) -> Path:
    """OptorSim's own files."""
    return data / "datagrid" / "optorsim"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small grid of ours, all files of it."""
    (tmp_path / "grid.conf").write_text(GRID)
    (tmp_path / "jobs.conf").write_text(JOBS)
    (tmp_path / "bandwidths.conf").write_text("-,0 -,0 -,0\n-,1 -,1 -,1\nday.dat,-9 -,0 -,0\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "day.dat").write_text(DAY)
    (tmp_path / "parameters.conf").write_text(PARAMETERS)
    return tmp_path


def test_the_cms_testbed(testbed: Path) -> None:
    """28 nodes, eight of them routers, with their names; sites, storage and links of the file."""
    grid = read_grid(testbed / "cms_testbed_grid.conf")
    topology = grid.topology()
    by_name = {node.name: node for node in grid.nodes}

    assert len(grid.nodes) == 28
    assert len(topology.sites) == 20
    assert sorted(topology.routers) == [
        "French router", "Italian router", "Russian router", "Swiss router", "UK router",
        "USA1", "USA2", "USA3",
    ]  # fmt: skip
    assert (by_name["Bari"].workers, by_name["Bari"].power) == (100, 0.5)
    assert by_name["Bari"].storage == (50_000 * 10**6,)
    assert (by_name["CERN"].workers, by_name["CERN"].storage) == (0, (100_000 * 10**6,))
    assert topology.route("Bari", "Padova").nodes == ("Bari", "Italian router", "Padova")
    assert topology.route("Bari", "Padova").bandwidth == 45 * MEGABIT
    assert topology.route("CERN", "Lyon").bandwidth == 1000 * MEGABIT
    assert all(
        topology.find(one, other) is not None for one in topology.sites for other in topology.sites
    )


def test_the_simple_grid(testbed: Path) -> None:
    """Ten sites without names; two have a worker, and both directions of a link share it."""
    grid = read_grid(testbed / "simple_grid.conf")
    topology = grid.topology()

    assert [node.name for node in grid.nodes if node.workers] == ["Site2", "Site7"]
    assert topology.route("Site0", "Site9").nodes == (
        "Site0", "Site2", "Site3", "Site6", "Site7", "Site9",
    )  # fmt: skip
    assert topology.route("Site0", "Site2").channels == topology.route("Site2", "Site0").channels


def test_the_jobs_of_the_testbed(testbed: Path) -> None:
    """97 files of 1000 MB and six kinds of jobs; 5 kSI2000-seconds for each MB."""
    jobs = read_jobs(testbed / "cms_testbed_jobs.conf")

    assert len(jobs.sizes) == 97
    assert set(jobs.sizes.values()) == {10**9}
    assert jobs.indices["highptphot57"] == 457
    assert [(kind.name, len(kind.files), kind.probability) for kind in jobs.kinds] == [
        ("jpsijob", 12, 0.5),
        ("highptlepjob", 2, 0.2),
        ("incelecjob", 5, 0.1),
        ("incmuonjob", 14, 0.1),
        ("highptphotjob", 58, 0.07),
        ("zbbbarjob", 6, 0.03),
    ]
    assert jobs.kinds[0].work(10**9) == 5000.0
    assert sorted(jobs.accepts) == [5, 6, 8, 9, 11, 14, 16, 17, 19]
    assert jobs.accepts[5] == tuple(kind.name for kind in jobs.kinds)


def test_the_jobs_of_the_simple_grid(testbed: Path) -> None:
    """The other file of its kind."""
    jobs = read_jobs(testbed / "simple_job.conf")

    assert [(kind.name, len(kind.files)) for kind in jobs.kinds] == [("job1", 8), ("job2", 1)]
    assert jobs.accepts == {2: ("job1",), 7: ("job2",)}


def test_the_parameters_of_the_testbed(testbed: Path) -> None:
    """They name the other files; the background is off."""
    found = read_parameters(testbed / "parameters.conf")

    assert found.grid == testbed / "cms_testbed_grid.conf"
    assert found.jobs == testbed / "cms_testbed_jobs.conf"
    assert found.background is None
    assert (found.number_of_jobs, found.job_delay, found.hour) == (100, 2.5, 0.0)
    assert found.masters == (14,)
    assert found.values["shape"] == "0.85"


def test_the_measurements_of_the_testbed(testbed: Path, tmp_path: Path) -> None:
    """24 files for its links; each of the two archives is read to the last."""
    for name in ("bw_cms_testbed", "bw_edg_testbed"):
        with tarfile.open(testbed / f"{name}.tar.xz") as archive:
            archive.extractall(tmp_path / name, filter="data")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 43
    assert all(len(read_measured(path).mean) == STEPS for path in files)

    cms = next(tmp_path.rglob("ral_to_bristol.dat")).parent
    background = read_background(
        testbed / "cms_testbed_bandwidths.conf", folder=cms, default="lyon_to_cern.dat"
    )
    profiles = background.profiles()
    topology = read_grid(testbed / "cms_testbed_grid.conf").topology(profiles=profiles)
    # Bristol (1) to the UK router (21): nothing measured, the default. The router's row says
    # one hour behind: at midnight it is 23:00 there, the 47th half-hour.
    bristol = next(channel for channel in topology.channels if "Bristol" in channel.name)
    default = read_measured(cms / "lyon_to_cern.dat")
    assert bristol.profile is not None
    assert bristol.profile.shares[:3] == (default.mean[46], default.mean[47], default.mean[0])
    assert background.measured[1, 3] == read_measured(cms / "ral_to_bristol.dat")


def test_a_grid_of_ours(folder: Path) -> None:
    """Names from the comments; what stands for a node itself is passed over."""
    grid = read_grid(folder / "grid.conf")

    assert [node.name for node in grid.nodes] == ["North", "South pole", "Hub"]
    assert grid.nodes[0].storage == (1000 * 10**6, 50 * 10**6)
    assert [node.is_router for node in grid.nodes] == [False, False, True]
    assert grid.topology().route("North", "South pole").bandwidth == 10 * MEGABIT
    assert len(grid.topology().channels) == 2
    assert len(grid.topology(duplex="full").channels) == 4


def test_a_matrix_that_is_not_symmetric(tmp_path: Path) -> None:
    """Each direction has what stands there; 0 one way is no way."""
    path = tmp_path / "grid.conf"
    path.write_text("1 1 0 0 10 0\n1 1 0 30 0 5\n1 1 0 0 0 0\n")
    topology = read_grid(path).topology()

    assert topology.route("Site0", "Site1").bandwidth == 10 * MEGABIT
    assert topology.route("Site1", "Site0").bandwidth == 30 * MEGABIT
    assert topology.route("Site1", "Site2").bandwidth == 5 * MEGABIT
    assert topology.find("Site2", "Site1") is None


def test_profiles_begin_at_the_hour_and_in_the_zone(folder: Path) -> None:
    """
    From Hub to North nine hours back: at 8:30 for the user it is 23:30 there, then midnight.
    """
    background = read_background(
        folder / "bandwidths.conf", folder=folder / "data", default="day.dat"
    )
    day = read_measured(folder / "data" / "day.dat")
    profile = background.profiles(hour=8.5)[2, 0]

    assert profile.step == 1800.0
    assert profile.shares[:3] == (day.mean[47], day.mean[0], day.mean[1])
    with pytest.raises(ValueError, match=r"an hour or half-hour, got 8\.25"):
        background.profiles(hour=8.25)


def test_shares_that_are_drawn(folder: Path) -> None:
    """
    Equal seeds draw equal shares, all above 0 and up to 1. The mean of 400 days, of a
    half-hour whose deviation of 1/8 is cut at +-4: within 5 of its 0.125 / 20.
    """
    background = read_background(
        folder / "bandwidths.conf", folder=folder / "data", default="day.dat"
    )
    drawn = [
        background.profiles(rng=np.random.default_rng(seed), days=400)[0, 1] for seed in (1, 1, 2)
    ]

    assert drawn[0] == drawn[1] != drawn[2]
    assert all(0 < share <= 1 for share in drawn[0].shares)
    assert np.mean(drawn[0].shares[::STEPS]) == pytest.approx(0.5, abs=5 * 0.125 / 20)


def test_parameters_find_their_files(folder: Path) -> None:
    """As they are named, from the folder above, or by the bare name."""
    found = read_parameters(folder / "parameters.conf")

    assert found.grid == folder / "grid.conf"
    assert found.background == folder / "bandwidths.conf"
    assert found.measurements == folder / "data"
    assert found.default_background == "day.dat"
    assert (found.hour, found.masters) == (8.5, (0, 1))


WRONG: list[tuple[str, str, str, str, str]] = [
    ("grid.conf", "4 0.5 2 1000 50.", "four 0.5 2 1000 50.", ":3", "a number of worker nodes"),
    ("grid.conf", "4 0.5 2 1000 50.", "4.5 0.5 2 1000 50.", ":3", "a whole number"),
    ("grid.conf", "4 0.5 2 1000 50.", "4 0 2 1000 50.", ":3", "positive power"),
    ("grid.conf", "4 0.5 2 1000 50.", "4 0.5 9 1000 50.", ":3", "sizes of 5 storage elements"),
    ("grid.conf", "0 0 1 70 0. 0. 20.", "0 0 1 70 0. 0.", ":4", "2 bandwidths, expected 3"),
    ("grid.conf", "0 0 1 70 0. 0. 20.", "0 0 1 70 0. 0. -20.", ":4", "in Mbit/s, from 0 to 1e+12"),
    ("grid.conf", "0 0 1 70 0. 0. 20.", "0 0", ":4", "expected worker nodes, kSI2000"),
    ("grid.conf", "0 0 1 70 0. 0. 20.", "0 0 1 70 0. 0. nan", ":4", "a bandwidth in Mbit/s"),
    ("grid.conf", GRID, "# nothing\n", "", "has no site"),
    ("jobs.conf", "f0 1000 7", "f0 1000", ":2", "expected a file, its MB and its index"),
    ("jobs.conf", "f0 1000 7", "f0 big 7", ":2", "expected a size in MB"),
    ("jobs.conf", "f1 500 8", "f0 500 8", ":3", '"f0" stands here twice'),
    ("jobs.conf", "read f0 f1", "read f0 f2", ":6", 'no file "f2"'),
    ("jobs.conf", "0 read idle", "0 red", ":10", 'no job "red"'),
    ("jobs.conf", "0 read idle", "zero read", ":10", "the number of a site"),
    ("jobs.conf", "0 read idle", "0 read\n0 idle", ":11", "site 0 stands here twice"),
    ("jobs.conf", "idle 0.25", "idle 1.25", ":14", "a probability, from 0 to 1"),
    ("jobs.conf", "idle 0.25\n", "", "", 'job "idle" has no probability'),
    ("jobs.conf", "0.75\nidle 0.25", "0\nidle 0", "", "no job has a probability"),
    ("jobs.conf", "read 10 0.5", "read 10", ":17", "kSI2000-seconds for each MB"),
    ("jobs.conf", "\\begin{jobtable}", "\\begin{jobtabel}", ":5", "expected \\begin"),
    ("jobs.conf", "\\begin{jobtable}", "stray", ":5", "expected \\begin"),
    ("jobs.conf", "\\end\n\\begin{jobtable}", "\\begin{jobtable}", ":4", "expected \\end of"),
    ("jobs.conf", "read 0.5\n\\end\n", "read 0.5\n", ":20", "expected \\end of filesetfraction"),
    ("jobs.conf", "{jobexecutiontime}", "{jobtable}", ":16", "second table jobtable"),
    ("jobs.conf", "\\begin{cescheduletable}\n0 read idle\n\\end\n", "", "", "has no table"),
    ("parameters.conf", "number.jobs = 100", "number.jobs = 1.5", ":4", "a whole number"),
    ("parameters.conf", "number.jobs = 100\n", "", "", "has no number.jobs"),
    ("parameters.conf", "number.jobs = 100", "number.jobs 100", ":4", '"key = value"'),
    ("parameters.conf", "job.delay = 2500", "job.delay = -1", ":5", "milliseconds, at least 0"),
    ("parameters.conf", "bandwidth = yes", "bandwidth = perhaps", ":6", "expected yes or no"),
    ("parameters.conf", "= jobs.conf", "= no.conf", ":2", 'no file "no.conf"'),
    ("parameters.conf", "= 8.5", "= 8.25", ":9", "an hour or half-hour, got 8.25"),
    ("parameters.conf", "= 8.5", "= 24", ":9", "an hour, from 0 to 23.5"),
    ("parameters.conf", "= 0,1", "= 0;1", ":10", "the number of a site"),
    ("bandwidths.conf", "-,1 -,1 -,1", "-,1 -,1", ":2", "has 2 links, expected 3"),
    ("bandwidths.conf", "-,1 -,1 -,1", "- -,1 -,1", ":2", '"file,zone"'),
    ("bandwidths.conf", "-,1 -,1 -,1", "-,x -,1 -,1", ":2", "hours of difference"),
    ("bandwidths.conf", "-,1 -,1 -,1", "-,99 -,1 -,1", ":2", "from -24 to 24"),
    ("bandwidths.conf", "-,1 -,1 -,1", "-,0.5 -,1 -,1", ":2", "whole hours"),
    ("bandwidths.conf", "day.dat,-9", "../day.dat,-9", ":3", "the name of a file in"),
    ("bandwidths.conf", "day.dat,-9", "night.dat,-9", ":3: ", "no such file"),
    ("data/day.dat", " 0.0,0.500,0.125", " 0.0,0.500", ":1", '"hour,mean,deviation"'),
    ("data/day.dat", " 0.0,0.500,0.125", " 0.0,0,0.125", ":1", "a mean share above 0"),
    ("data/day.dat", " 0.0,0.500,0.125", " 0.0,1.5,0.125", ":1", "from 0 to 1, got 1.5"),
    ("data/day.dat", " 0.5,", "25.0,", ":2", "an hour, from 0 to 24"),
    ("data/day.dat", DAY, DAY[:-18], "", "has 47 half-hours, expected 48"),
    ("data/day.dat", DAY, DAY + "24.0,0.5,0.1\n", ":49", "expected the end after 48 half-hours"),
]  # fmt: skip

READERS: dict[str, Callable[[Path], object]] = {
    "grid.conf": read_grid,
    "jobs.conf": read_jobs,
    "parameters.conf": read_parameters,
    "bandwidths.conf": lambda path: read_background(
        path, folder=path.parent / "data", default="day.dat"
    ),
    "data/day.dat": read_measured,
}


@pytest.mark.parametrize(("name", "good", "bad", "line", "message"), WRONG)
def test_what_is_wrong_is_said_at_its_line(
    name: str, good: str, bad: str, line: str, message: str, folder: Path
) -> None:
    """One thing wrong in files that are right otherwise."""
    path = folder / name
    text = path.read_text()
    assert good in text
    path.write_text(text.replace(good, bad, 1))

    with pytest.raises(InputError) as caught:
        READERS[name](path)

    assert caught.value.where.startswith(f"{path}{line}")
    assert line or caught.value.where == str(path)
    assert message in caught.value.message


@pytest.mark.parametrize("name", READERS)
@settings(
    max_examples=examples(60),
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    changes=st.lists(
        st.tuples(
            st.floats(0, 1, exclude_max=True),
            st.integers(0, 8),
            st.sampled_from(["", "-1", "1e999", "nan", "\\", "{", "#", "=", ",", "\n", "\0", "9"]),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_a_damaged_file_reads_or_is_refused(
    name: str, changes: list[tuple[float, int, str]], folder: Path
) -> None:
    """Whatever is in it, no other error comes out."""
    original = (folder / name).read_text()
    text = original
    for share, length, new in changes:
        at = int(share * len(text))
        text = text[:at] + new + text[at + length :]
    (folder / name).write_text(text)
    refusal: InputError | None = None
    try:
        READERS[name](folder / name)
    except InputError as error:
        refusal = error
    (folder / name).write_text(original)
    if refusal is not None:
        assert str(folder) in refusal.where
        assert "\n" not in refusal.where + refusal.message
