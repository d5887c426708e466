"""Hosts that do not see the run's folder: files go there and come back through ssh."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.sites.ssh_servers import SshHostsOfTest, marked, ssh_hosts
from tests.sites.test_ssh_site import (
    BURSAR,
    PATIENCE,
    assert_nothing_left,
    bursar,
    mark_of,
    wait_for,
)

from bursar.provisioning.host_pilot import scratch_prefix
from bursar.sites.carrying_executor import SentContents

CAMPAIGN = """\
[campaign]
name = "files"

[retry]
attempts = 4

[tasks.first]
command = "sh first.sh {{n}} {seconds}"
parameters = {{ n = {{ from = 1, to = {count}, step = 1 }} }}
inputs = ["first.sh", "common.txt", "in/{{n}}.txt"]
outputs = ["out/{{n}}.txt"]
runtime = "{seconds} s"

[tasks.second]
command = "sh second.sh {{n}}"
parameters = {{ n = {{ from = 1, to = {count}, step = 1 }} }}
inputs = ["second.sh", "out/{{n}}.txt"]
outputs = ["last/{{n}}.txt"]
"""

FIRST = """\
cat common.txt in/$1.txt > out/$1.txt
echo spoilt >> common.txt  # harms no other task
sleep $2
chmod 755 out/$1.txt
"""

SECOND = """\
head -c 3000000 /dev/zero | tr '\\0' $1
cp out/$1.txt last/$1.txt
"""


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHostsOfTest]:
    """Two hosts that no test breaks."""
    with ssh_hosts(tmp_path_factory.mktemp("ssh"), 2) as hosts:
        yield hosts


def write(folder: Path, hosts: SshHostsOfTest, *extra: str, seconds: float = 0.1) -> None:
    """Write the files of a run, and an interpreter that does not see their folder."""
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount name spaces here: what a host does not see cannot be hidden")
    elsewhere = folder.parent / "python-elsewhere"
    # The interpreter of the hosts: in a mount name space of its own, where the folder is empty.
    elsewhere.write_text(
        "#!/bin/sh\n"
        f"exec unshare -rm sh -c 'mount -t tmpfs none {folder} && exec \"$@\"' sh "
        f'{shutil.which("python3", path=str(BURSAR.parent))} "$@"\n'
    )
    elsewhere.chmod(0o755)
    sites = hosts.table(f'python = "{elsewhere}"', *extra).replace('reach = "127.0.0.1"\n', "")
    (folder / "sites.toml").write_text(sites)
    (folder / "files.toml").write_text(CAMPAIGN.format(count=6, seconds=seconds))
    (folder / "first.sh").write_text(FIRST)
    (folder / "second.sh").write_text(SECOND)
    (folder / "common.txt").write_text("common\n")
    (folder / "in").mkdir()
    for number in range(1, 7):
        (folder / f"in/{number}.txt").write_bytes(b"x" * 1_500_000 + b"%d\n" % number)


@pytest.fixture
def campaign(tmp_path: Path) -> Path:
    """Folder of the campaign, which hosts do not see."""
    (tmp_path / "campaign").mkdir()
    return tmp_path / "campaign"


def start(folder: Path) -> "subprocess.Popen[str]":
    """Start the run."""
    return subprocess.Popen(
        [BURSAR, "run", "files.toml", "--sites", "sites.toml", "--name", "one"],
        cwd=folder,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def assert_complete(folder: Path) -> None:
    """Each task has one result, all files and long streams are here, and nothing is left."""
    lines = (folder / "runs/one/results.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    ended = Counter(record["task"] for record in records if record["status"] == "succeeded")
    assert len(ended) == 12
    assert set(ended.values()) == {1}
    for number in range(1, 7):
        expected = b"common\n" + b"x" * 1_500_000 + b"%d\n" % number
        for name in (f"out/{number}.txt", f"last/{number}.txt"):
            assert (folder / "runs/one/files" / name).read_bytes() == expected
        assert os.access(folder / f"runs/one/files/out/{number}.txt", os.X_OK)
    streams = [path.read_bytes() for path in (folder / "runs/one/logs").glob("*.stdout")]
    assert sorted(stream.lstrip()[-1:] for stream in streams) == [b"%d" % n for n in range(1, 7)]
    assert all(len(stream) == 3_000_000 for stream in streams)
    assert not list((folder / "runs/one").rglob(".carried-*"))
    assert not list((folder / "runs/one").glob(".bursar-ssh-*"))
    assert_nothing_left(folder)
    assert not list(Path(tempfile.gettempdir()).glob(f"{scratch_prefix(mark_of(folder))}*"))


def test_files_go_to_hosts_and_come_back(two: SshHostsOfTest, campaign: Path) -> None:
    """Inputs, outputs, modes and long streams pass; no host needs a way back to this machine."""
    write(campaign, two)

    said, errors = start(campaign).communicate(timeout=PATIENCE)

    assert "12 of 12 succeeded" in said, errors
    assert errors.count("does not see the run's folder; files are carried") == 2
    assert_complete(campaign)


@pytest.mark.ci
def test_files_are_carried_where_it_is_stated(two: SshHostsOfTest, campaign: Path) -> None:
    """With ``shared_folder = false`` they are carried, whatever the hosts see."""
    write(campaign, two, "shared_folder = false")
    sites = (campaign / "sites.toml").read_text().splitlines()
    kept = [line for line in sites if not line.startswith("python")]
    (campaign / "sites.toml").write_text("\n".join(kept))

    said, errors = start(campaign).communicate(timeout=PATIENCE)

    assert "12 of 12 succeeded" in said, errors
    assert_complete(campaign)


def test_a_stated_folder_that_is_not_seen_is_one_line(two: SshHostsOfTest, campaign: Path) -> None:
    """With ``shared_folder = true`` a host that does not see the folder is not used."""
    write(campaign, two, "shared_folder = true")

    done = bursar(campaign, "run", "files.toml", "--sites", "sites.toml", "--name", "one")

    assert done.returncode == 1
    assert "does not see" in done.stderr
    assert "shared_folder" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.ci
def test_a_missing_output_fails_its_task_alone(two: SshHostsOfTest, campaign: Path) -> None:
    """An output that is not made is named in the reason, as where the folder is seen."""
    write(campaign, two)
    (campaign / "first.sh").write_text("test $1 != 3 || exit 0\n" + FIRST)
    text = (campaign / "files.toml").read_text().replace("attempts = 4", "attempts = 1")
    (campaign / "files.toml").write_text(text)

    said, _ = start(campaign).communicate(timeout=PATIENCE)

    assert "10 of 12 succeeded" in said
    records = (campaign / "runs/one/results.jsonl").read_text()
    assert 'output \\"out/3.txt\\" was not made' in records


@pytest.mark.ci
def test_a_killed_run_has_each_result_once(two: SshHostsOfTest, campaign: Path) -> None:
    """After ``kill -9`` in the middle, resuming makes what is missing, and nothing twice."""
    write(campaign, two, seconds=1)
    running = start(campaign)
    results = campaign / "runs/one/results.jsonl"
    wait_for(lambda: results.exists() and results.read_text().count("\n") >= 2)
    running.send_signal(signal.SIGKILL)
    running.communicate()

    wait_for(lambda: not marked(mark_of(campaign)))
    resumed = bursar(campaign, "run", "--resume", "one")

    assert resumed.returncode == 0, resumed.stderr
    assert "12 of 12 succeeded" in resumed.stdout
    assert_complete(campaign)


@pytest.mark.ci
def test_a_vanishing_host_loses_nothing(campaign: Path) -> None:
    """What a host had that dies in the middle runs again at the other one."""
    with ssh_hosts(campaign.parent, 2) as hosts:
        write(campaign, hosts, seconds=1)
        running = start(campaign)
        wait_for(lambda: (campaign / "runs/one").exists() and len(marked(mark_of(campaign))) > 5)
        hosts.servers[1].vanish()
        said, errors = running.communicate(timeout=PATIENCE)

        assert "12 of 12 succeeded" in said, errors
        assert f"127.0.0.1:{hosts.servers[1].port}: the connection is lost" in errors
        # The scratch folder of a host without power stays, until the run asks it again.
        for left in Path(tempfile.gettempdir()).glob(f"{scratch_prefix(mark_of(campaign))}*"):
            shutil.rmtree(left)
        assert_complete(campaign)


def test_contents_used_longest_ago_are_forgotten_first() -> None:
    """A host keeps no more than so many bytes, and no content is named after it was forgotten."""
    sent = SentContents(most=100)
    one, two, three = (("a", 0, 60, 1), ("b", 0, 30, 2), ("c", 0, 40, 3))
    for number, version in enumerate((one, two), 1):
        assert sent.find(version) is None
        sent.add(version, sent.number())
        assert sent.find(version) == number
    assert sent.surplus() == []
    assert sent.find(one) == 1  # used again
    sent.add(three, sent.number())

    assert sent.surplus() == [2]  # 130 bytes less 30 are 100
    assert sent.find(two) is None
    assert (sent.find(one), sent.find(three)) == (1, 3)
