"""OptorSim's configurations, read as they are, go through the simulator."""

import tarfile
from pathlib import Path

import numpy as np
import pytest

from bursar.api.datagrid import simulate
from bursar.model.errors import InputError
from bursar_papers.optorsim.optorsim_scenario import from_optorsim

GRID = """\
# worker nodes, kSI2000, storage elements, sizes, bandwidths
2 1.0 1 3000 0. 8.
1 0.5 1 5000 8. 0.
"""
JOBS = """\
\\begin{filetable}
one 10 1
two 20 2
\\end
\\begin{jobtable}
short one
long one two
\\end
\\begin{cescheduletable}
0 short
1 short long
\\end
\\begin{jobselectionprobability}
short 0.5
long 0.5
\\end
\\begin{jobexecutiontime}
short 3 0
long 0 1
\\end
"""
PARAMETERS = """\
grid.configuration.file = grid.conf
job.configuration.file = jobs.conf
number.jobs = 40
scheduler = 4
users = 1
optimiser = 2
initial.file.distribution = 0
job.delay = 5000
"""


def written(folder: Path, **changes: str) -> Path:
    """The three files, some keys of the parameters changed."""
    lines = dict(line.split(" = ") for line in PARAMETERS.splitlines())
    lines.update({key.replace("_", "."): value for key, value in changes.items()})
    (folder / "grid.conf").write_text(GRID)
    (folder / "jobs.conf").write_text(JOBS)
    path = folder / "parameters.conf"
    path.write_text("".join(f"{key} = {value}\n" for key, value in lines.items()))
    return path


def test_a_small_configuration_means_what_it_says(tmp_path: Path) -> None:
    """
    Two processors of 1 and one of 0.5; both files at the first site. A short job takes 3 s
    there and runs anywhere; a long one 30 units, so 60 s at the only site that takes it.
    """
    made = from_optorsim(written(tmp_path))

    first, second = made.grid.sites
    assert (first.processors, first.speed, second.processors, second.speed) == (2, 1.0, 1, 0.5)
    assert first.storage_limit == 3_000_000_000 - 30_000_000
    assert {(r.name, r.site, r.size) for r in made.grid.replicas} == {
        ("one", "Site0", 10_000_000),
        ("two", "Site0", 20_000_000),
    }
    assert made.services.keeps
    assert made.load.at.tolist() == [5.0 * (i + 1) for i in range(40)]
    by_name = {kind.name: kind for kind in made.load.kinds}
    assert (by_name["short"].runtime, by_name["long"].runtime) == (3.0, 30.0)
    assert by_name["long"].data == ("one", "two")

    outcome = simulate(made.grid, made.load, policy=made.policy, services=made.services)

    assert outcome.finished == 40
    is_long = np.array([made.load.kinds[k].name == "long" for k in made.load.kind])
    assert set(outcome.site[is_long].tolist()) == {1}
    ran = outcome.ended - outcome.began
    assert set(np.round(ran[is_long], 6).tolist()) == {60.0}
    # Its two files, 30 MB over 8 Mbit/s (10^6 bytes a second), are brought once and stay.
    brought = (outcome.arrived - outcome.submitted)[is_long]
    assert brought.max() == pytest.approx(30.0)
    assert brought.min() == 0.0


def test_equal_seeds_draw_the_same(tmp_path: Path) -> None:
    path = written(tmp_path, users="2", initial_file_distribution="random")
    one, other, third = (from_optorsim(path, seed=seed) for seed in (1, 1, 2))
    assert one.load.at.tolist() == other.load.at.tolist() != third.load.at.tolist()
    assert one.grid.replicas == other.grid.replicas


def test_a_part_of_the_files_may_be_read(tmp_path: Path) -> None:
    path = written(tmp_path, access_pattern_generator="5", shape="0.85")
    (tmp_path / "jobs.conf").write_text(JOBS + "\\begin{filesetfraction}\nlong 0.5\n\\end\n")
    read = {kind.data for kind in from_optorsim(path).load.kinds if kind.name == "long"}
    assert read == {("one",), ("two",)}


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("scheduler", "7", 'unknown scheduler "7"'),
        ("users", "3", "users of kind 3"),
        ("initial_file_distribution", "5", "no storage at site 5"),
    ],
)
def test_what_is_not_simulated_is_said(tmp_path: Path, key: str, value: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        from_optorsim(written(tmp_path, **{key: value}))


def test_the_cms_testbed_runs(data: Path) -> None:
    """
    A hundred jobs over the 18 sites with worker nodes; all files are at CERN, which has none.
    Jobs run only where the schedule table has them.
    """
    made = from_optorsim(data / "datagrid" / "optorsim" / "parameters.conf")
    assert (len(made.grid.sites), made.grid.stores) == (18, ("CERN", "FNAL"))
    assert {replica.site for replica in made.grid.replicas} == {"CERN"}

    outcome = simulate(made.grid, made.load, policy=made.policy, services=made.services)

    assert outcome.finished == 100
    used = {name for name, jobs in outcome.jobs_at.items() if jobs}
    assert used <= {"Padova", "Bari", "Catania", "Roma", "Bologna", "Wisconsin", "UFL"}


def test_the_cms_testbed_runs_beside_others_traffic(data: Path, tmp_path: Path) -> None:
    """With what was measured of the links' bandwidth over a day, transfers take longer."""
    source = data / "datagrid" / "optorsim"
    for file in source.glob("*.conf"):
        (tmp_path / file.name).write_text(file.read_text())
    with tarfile.open(source / "bw_cms_testbed.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    (measured,) = {path.parent for path in tmp_path.rglob("*.dat")}
    text = (tmp_path / "parameters.conf").read_text()
    text = text.replace("background.bandwidth = no", "background.bandwidth = yes")
    text = text.replace("examples/bw_data/cms_testbed/", str(measured))
    (tmp_path / "busy.conf").write_text(text)

    def lifetime(name: str) -> float:
        made = from_optorsim(tmp_path / name, jobs=20)
        return simulate(
            made.grid, made.load, policy=made.policy, services=made.services
        ).mean_lifetime()

    assert lifetime("busy.conf") > lifetime("parameters.conf")
