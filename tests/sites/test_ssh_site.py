"""Sites that are lists of machines: several private ssh servers of this machine stand for hosts."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.sites.ssh_servers import SshHostsOfTest, make_key, marked, ssh_hosts

from bursar import Executor
from bursar.runs.folder import RunFolder
from bursar.sites.ssh_hosts import ConnectionSockets

PATIENCE = 60.0
BURSAR = Path(sys.executable).parent / "bursar"

CAMPAIGN = """\
[campaign]
name = "many"

[retry]
attempts = 4

[tasks.work]
command = "sh -c 'echo ${{{{SSH_CONNECTION##* }}}}; sleep {seconds}; echo done {{n}}'"
parameters = {{ n = {{ from = 1, to = {count}, step = 1 }} }}
runtime = "{seconds} s"
"""


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHostsOfTest]:
    """Three hosts that no test breaks."""
    with ssh_hosts(tmp_path_factory.mktemp("ssh"), 3) as hosts:
        yield hosts


def bursar(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder."""
    return subprocess.run(
        [BURSAR, *words], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


def write(folder: Path, sites: str, *, count: int = 6, seconds: float = 0.3) -> None:
    """Write the files of a run."""
    (folder / "sites.toml").write_text(sites)
    (folder / "many.toml").write_text(CAMPAIGN.format(count=count, seconds=seconds))


def wait_for(what: Callable[[], object]) -> None:
    """Wait until something is so."""
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def mark_of(folder: Path, run: str = "one") -> str:
    """Return the mark of a run's processes at the hosts."""
    return f"{RunFolder(folder / 'runs' / run).identity}@lab"


def assert_nothing_left(folder: Path) -> None:
    """Nothing of the run is at the hosts, and no connection to them is left."""
    mark = mark_of(folder)
    assert marked(mark) == []
    assert not ConnectionSockets(mark).path.exists()
    assert not Path(f"/tmp/bursar-processors-{os.getuid()}").exists()


def summary(folder: Path) -> dict[str, object]:
    """Return what the command says of the run."""
    found = bursar(folder, "status", "one", "--json")
    assert found.returncode == 0, found.stderr
    return dict(json.loads(found.stdout))


def test_a_campaign_runs_on_three_hosts(three: SshHostsOfTest, tmp_path: Path) -> None:
    """Each host runs tasks; the run is billed by our clock, and nothing is left at the hosts."""
    write(tmp_path, three.table())

    done = bursar(tmp_path, "run", "many.toml", "--sites", "sites.toml", "--name", "one")

    assert done.returncode == 0, done.stderr
    records = [
        json.loads(line) for line in (tmp_path / "runs/one/results.jsonl").read_text().splitlines()
    ]
    assert [record["status"] for record in records] == ["succeeded"] * 6
    ports = {int(record["stdout"].split()[0]) for record in records}
    assert ports == {server.port for server in three.servers}
    assert_nothing_left(tmp_path)
    assert [server.sessions for server in three.servers] == [0, 0, 0]


@pytest.mark.ci
def test_hosts_say_how_many_processors_they_have(three: SshHostsOfTest, tmp_path: Path) -> None:
    """What a host does not state is asked for, and shown; plans count on it."""
    write(tmp_path, three.table(processors=None))
    count = len(os.sched_getaffinity(0))

    shown = bursar(tmp_path, "sites", "--sites", "sites.toml", "--json")
    planned = bursar(tmp_path, "plan", "many.toml", "--sites", "sites.toml", "--json")

    assert shown.returncode == 0, shown.stderr
    (site,) = json.loads(shown.stdout)["sites"]
    assert site["kind"] == "ssh"
    assert site["processors"] <= 3 * count
    assert [host["free"] for host in site["hosts"]] == [site["processors"] // 3] * 3
    assert all(host["memory"] > 0 for host in site["hosts"])
    assert planned.returncode == 0, planned.stderr


@pytest.mark.ci
@pytest.mark.parametrize(
    "policy",
    [
        ("--strategy", "time", "--deadline", "1h"),
        ("--provisioning", "dynamic"),
    ],
)
def test_strategies_and_pools_use_machines(
    policy: tuple[str, ...], three: SshHostsOfTest, tmp_path: Path
) -> None:
    """They run there as on any site, and a simulation of the same takes no machine."""
    write(tmp_path, three.table())
    words = ("many.toml", "--sites", "sites.toml", *policy)

    simulated = bursar(tmp_path, "simulate", *words)
    assert simulated.returncode == 0, simulated.stderr
    assert [server.sessions for server in three.servers] == [0, 0, 0]
    done = bursar(tmp_path, "run", *words, "--name", "one")

    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "runs/one/results.jsonl").read_text().splitlines()
    assert [json.loads(line)["status"] for line in lines] == ["succeeded"] * 6
    assert_nothing_left(tmp_path)


def test_what_machines_cannot_do_is_one_line(tmp_path: Path) -> None:
    """A service does not sell them: said before anything starts."""
    table = 'kind = "ssh"\nhosts = [{ host = "127.0.0.1", processors = 1 }]\n'
    (tmp_path / "service.toml").write_text(f"[site]\n{table}")
    served = bursar(tmp_path, "serve", "-c", "service.toml")
    assert served.returncode == 2
    assert "site.kind: ssh sites cannot be served" in served.stderr


@pytest.mark.ci
def test_calls_run_on_hosts(three: SshHostsOfTest, tmp_path: Path) -> None:
    """Python functions run there as commands do, and return data; nothing is left at the hosts."""
    write(tmp_path, three.table())

    with Executor(sites=tmp_path / "sites.toml", folder=tmp_path / "runs/one") as executor:
        assert list(executor.map(pow, range(6), [2] * 6, timeout=PATIENCE)) == [
            0,
            1,
            4,
            9,
            16,
            25,
        ]
        assert isinstance(executor.submit(int, "one").exception(PATIENCE), ValueError)

    assert_nothing_left(tmp_path)


def test_a_host_that_vanishes_is_lost_as_a_node_is(tmp_path: Path) -> None:
    """Tasks of a host whose server and processes die in the middle run again at another one."""
    with ssh_hosts(tmp_path, 2) as two:
        write(tmp_path, two.table(), count=6, seconds=1.5)
        running = subprocess.Popen(
            [BURSAR, "run", "many.toml", "--sites", "sites.toml", "--name", "one"],
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        wait_for(lambda: (tmp_path / "runs/one").exists() and len(marked(mark_of(tmp_path))) > 7)
        two.servers[1].vanish()
        said, errors = running.communicate(timeout=PATIENCE)

        assert running.returncode == 0, errors
        assert "6 of 6 succeeded" in said
        assert f"127.0.0.1:{two.servers[1].port}: the connection is lost" in errors
        assert_nothing_left(tmp_path)


def test_a_killed_run_leaves_nothing_and_is_resumed(three: SshHostsOfTest, tmp_path: Path) -> None:
    """After ``kill -9`` the hosts end the pilots by themselves; the run goes on when resumed."""
    write(tmp_path, three.table(), count=6, seconds=2)
    running = subprocess.Popen(
        [BURSAR, "run", "many.toml", "--sites", "sites.toml", "--name", "one"],
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    wait_for(lambda: (tmp_path / "runs/one").exists() and len(marked(mark_of(tmp_path))) > 9)
    running.send_signal(signal.SIGKILL)
    running.wait()

    wait_for(lambda: not marked(mark_of(tmp_path)))
    resumed = bursar(tmp_path, "run", "--resume", "one")

    assert resumed.returncode == 0, resumed.stderr
    assert "6 of 6 succeeded" in resumed.stdout
    assert_nothing_left(tmp_path)


def test_a_wrong_key_is_one_line(three: SshHostsOfTest, tmp_path: Path) -> None:
    """A key that is not accepted is named with the host and what to do; nobody is asked."""
    make_key(tmp_path / "other")
    config = tmp_path / "config"
    config.write_text(
        three.config.read_text().replace(f"{three.folder}/user", str(tmp_path / "other"))
    )
    write(tmp_path, three.table(processors=None).replace(str(three.config), str(config)))

    done = bursar(tmp_path, "run", "many.toml", "--sites", "sites.toml", "--name", "one")

    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert f"lab: 127.0.0.1:{three.servers[0].port}: " in done.stderr
    assert "Permission denied" in done.stderr
    assert "identity_file" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_host_key_is_one_line(three: SshHostsOfTest, tmp_path: Path) -> None:
    """A host whose key is not known is refused, as the user's ssh does, and nothing is asked."""
    config = tmp_path / "config"
    config.write_text(three.config.read_text().replace(str(three.known), str(tmp_path / "none")))
    write(tmp_path, three.table(processors=None).replace(str(three.config), str(config)))

    done = bursar(tmp_path, "plan", "many.toml", "--sites", "sites.toml")

    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "ost key" in done.stderr
    assert "`ssh 127.0.0.1`" in done.stderr


def test_a_host_without_the_interpreter_is_one_line(three: SshHostsOfTest, tmp_path: Path) -> None:
    """The interpreter that is missing is named."""
    write(tmp_path, three.table('python = "/no/python3"', processors=None))

    done = bursar(tmp_path, "plan", "many.toml", "--sites", "sites.toml")

    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "/no/python3 is not there: set python" in done.stderr


@pytest.mark.ci
def test_a_run_goes_on_without_a_host_that_cannot_be_used(tmp_path: Path) -> None:
    """A host that is down is told of in a line, and the others carry the run out."""
    with ssh_hosts(tmp_path, 2) as two:
        write(tmp_path, two.table(processors=None))
        two.servers[0].vanish()

        done = bursar(tmp_path, "run", "many.toml", "--sites", "sites.toml", "--name", "one")

        assert done.returncode == 0, done.stderr
        assert f"lab: 127.0.0.1:{two.servers[0].port}: " in done.stderr
        assert_nothing_left(tmp_path)


@pytest.mark.ci
def test_hosts_behind_a_jump_host_come_back_through_ssh(
    three: SshHostsOfTest, tmp_path: Path
) -> None:
    """With ``jump`` and ``reverse``, all that passes goes through ssh connections over it."""
    jump = three.servers[0]
    sites = three.table(
        "reverse = true", f'jump = "127.0.0.1:{jump.port}"', servers=three.servers[1:]
    )
    sites = sites.replace('reach = "127.0.0.1"\n', "")
    write(tmp_path, sites)

    done = bursar(tmp_path, "run", "many.toml", "--sites", "sites.toml", "--name", "one")

    assert done.returncode == 0, done.stderr
    assert "6 of 6 succeeded" in done.stdout
    assert_nothing_left(tmp_path)


@pytest.mark.ci
def test_runs_keep_processors_from_each_other(three: SshHostsOfTest, tmp_path: Path) -> None:
    """With ``shared = false`` a later run waits for the processors of an earlier one."""
    # One host: all of them are this machine, whose processors are kept by one file.
    sites = three.table("shared = false", processors=2, servers=three.servers[:1])
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    write(tmp_path / "a", sites, count=2, seconds=12)
    write(tmp_path / "b", sites, count=3, seconds=0.1)
    first = subprocess.Popen(
        [BURSAR, "run", "many.toml", "--sites", "sites.toml", "--name", "one"],
        cwd=tmp_path / "a",
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    wait_for(
        lambda: (tmp_path / "a/runs/one").exists() and len(marked(mark_of(tmp_path / "a"))) > 3
    )

    second = bursar(tmp_path / "b", "run", "many.toml", "--sites", "sites.toml", "--name", "one")

    assert second.returncode == 0, second.stderr
    assert "other runs hold 2 processors; this run waits for 2" in second.stderr
    first.communicate(timeout=PATIENCE)
    assert first.returncode == 0
    assert_nothing_left(tmp_path / "b")
