"""Batch schedulers in sites files: what is read, and what is refused and where."""

import tomllib
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from bursar.formats.sites_toml import read_sites, sites_schema
from bursar.model.errors import InputError
from bursar.model.provisioning import AcquisitionPolicy, BatchScheduler

SCHEMA = Draft202012Validator(sites_schema())

SITE = '[site.x]\nkind = "slurm"\nprocessors = 4\n'


def read(folder: Path, text: str) -> tuple[BatchScheduler | None, AcquisitionPolicy]:
    path = folder / "s.toml"
    path.write_text(text)
    (site,) = read_sites(path)
    return site.batch, site.acquiring


def test_what_is_not_said_is_left_to_the_scheduler(tmp_path: Path) -> None:
    assert read(tmp_path, SITE) == (BatchScheduler(manager="slurm"), AcquisitionPolicy())


def test_all_is_read(tmp_path: Path) -> None:
    text = SITE + (
        'queue = "q"\naccount = "a"\nqos = "high"\ndirectives = ["--exclusive"]\n'
        'setup = ["module load x"]\nfolder = "pilots"\nreach = "login1"\npython = "python3"\n'
        'environment = { SLURM_CONF = "/etc/x" }\n'
        '[site.x.pool]\nacquisition = "additive"\nfewest = 1\nmost = 3\nshortest = "2 min"\n'
        'longest = "1 h"\ntrigger = 5\nrelease = "queue"\nidle = 10\nbelow = 3\n'
        'max_pending = 4\nmax_racing = 1\nprobe_every = "5 min"\n'
    )
    assert not list(SCHEMA.iter_errors(tomllib.loads(text)))
    batch, acquiring = read(tmp_path, text)
    assert batch == BatchScheduler(
        manager="slurm",
        queue="q",
        account="a",
        qos="high",
        directives=("--exclusive",),
        setup=("module load x",),
        environment={"SLURM_CONF": "/etc/x"},
        folder=str(tmp_path / "pilots"),
        reach="login1",
        python="python3",
    )
    assert acquiring == AcquisitionPolicy(
        acquisition="additive",
        fewest=1,
        most=3,
        shortest=120.0,
        longest=3600.0,
        trigger=5,
        release="queue",
        idle=10.0,
        below=3,
        max_pending=4,
        max_racing=1,
        probe_every=300.0,
    )


def test_a_folder_of_a_login_node_stays_as_it_is(tmp_path: Path) -> None:
    batch, _ = read(tmp_path, SITE + 'ssh = "login"\nfolder = "/scratch/me"\n')
    assert batch is not None
    assert batch.folder == "/scratch/me"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[site.x]\nkind = "slurm"\n', "s.toml:1: site.x.processors: how many processors may"),
        ('[site.x]\nqueue = "q"\n', "s.toml:2: site.x.queue: goes with a batch scheduler only"),
        (SITE + 'queue = "a b"\n', "s.toml:4: site.x.queue: expected a word"),
        (SITE + 'directives = ["-p x\\n-A y"]\n', "site.x.directives: expected single lines"),
        (SITE + 'ssh = "-oProxyCommand=x"\n', "s.toml:4: site.x.ssh: expected a host"),
        (
            SITE + 'ssh = "login"\nfolder = "scratch/me"\n',
            "s.toml:5: site.x.folder: expected a path from the root",
        ),
        (SITE + '[site.x.pool]\nacquisition = "all"\n', "site.x.pool.acquisition: "),
        (SITE + "[site.x.pool]\nfewest = 5\nmost = 4\n", "site.x.pool: most must be at least"),
        (SITE + "[site.x.pool]\nlongest = 5\n", "site.x.pool: 0 < shortest <= longest"),
        (SITE + '[site.x.pool]\nidle = "soon"\n', "site.x.pool.idle: "),
        (SITE + "[site.x.pool]\nmax = 5\n", "site.x.pool.max: "),
        (SITE + 'trace = "log.swf"\n', "site.x.trace: goes with a simulated site only"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(text: str, expected: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, text)
    assert expected in str(caught.value)
