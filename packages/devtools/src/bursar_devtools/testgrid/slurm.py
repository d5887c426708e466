"""
A throwaway cluster under real Slurm: controller, nodes and key of its own, in one folder.

It needs no systemd, no control groups and no rights, and leaves alone whatever Slurm there is.
"""

import os
import pwd
import re
import secrets
import signal
import stat
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from bursar.model.errors import InputError, SiteError
from bursar_devtools.testgrid import grid_folder, ports, processes, slurm_configuration
from bursar_devtools.testgrid.slurm_configuration import PARTITIONS, SlurmClusterSettings
from bursar_devtools.testgrid.slurm_requirements import check, how_to_install, search_path

DAEMONS = ("munged", "slurmctld", "slurmd", "slurmstepd", "slurmscriptd")
MARK = "cluster.json"


READY = ("idle", "mixed", "allocated", "completing")


class SlurmCluster:
    """
    A cluster in a folder, from which all state is read.

    Use :meth:`up` or :meth:`at`.

    Attributes
    ----------
    folder
        Resolved.
    """

    def __init__(self, folder: Path, settings: SlurmClusterSettings) -> None:
        self.folder = folder
        self.settings = settings
        self._started: list[tuple[str, subprocess.Popen[bytes]]] = []

    @classmethod
    def up(
        cls,
        folder: Path | str,
        *,
        name: str = "test",
        nodes: int = 4,
        cpus: int = 4,
        memory: int = 4000,
        gpus: int = 0,
        latency: int = 0,
        partitions: Mapping[str, str] = PARTITIONS,
        accounting: bool = True,
        extra: Sequence[str] = (),
        default_times: bool = False,
        patience: float = 60.0,
    ) -> "SlurmCluster":
        """
        Starts a cluster and returns when every node is there.

        Parameters
        ----------
        folder
            Made, unless it is there and empty. A cluster in it of which nothing runs any more
            is removed first.
        name, nodes, cpus, memory, gpus, latency, partitions, accounting, extra, default_times
            As :class:`SlurmClusterSettings` has them.
        patience
            Seconds after which it is given up.

        Raises
        ------
        InputError
            When a value is out of range, or the folder is in use.
        SiteError
            When programs are missing, or a daemon does not start; then nothing is left behind.
        """
        settings = SlurmClusterSettings(
            name=name,
            nodes=nodes,
            cpus=cpus,
            memory=memory,
            gpus=gpus,
            latency=latency,
            partitions=dict(partitions),
            accounting=accounting,
            extra=tuple(extra),
            default_times=default_times,
        )
        path = Path(folder).resolve()
        check(path, settings)
        with grid_folder.create_locked(path):
            if grid_folder.is_marked(path, MARK):
                old = cls.at(path)
                if old.processes():
                    raise InputError("a test cluster runs here already", where=str(path))
                grid_folder.empty(path)
            grid_folder.need_empty(path)
            try:
                return start_all({path: settings}, patience=patience)[0]
            finally:
                grid_folder.remove_empty(path)

    @classmethod
    def at(cls, folder: Path | str) -> "SlurmCluster":
        """
        Return the cluster of a folder, running or not.

        Raises
        ------
        InputError
            When there is none.
        """
        path = Path(folder).resolve()
        try:
            settings = msgspec.json.decode((path / MARK).read_bytes(), type=SlurmClusterSettings)
        except (FileNotFoundError, NotADirectoryError):
            raise InputError("no test cluster is there", where=str(path)) from None
        except (OSError, msgspec.DecodeError) as error:
            raise InputError(f"cannot be read: {error}", where=str(path / MARK)) from None
        return cls(path, settings)

    @property
    def name(self) -> str:
        """Name of the cluster."""
        return self.settings.name

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the cluster's nodes."""
        return self.settings.node_names

    @property
    def processors(self) -> int:
        """Number of processors of all nodes."""
        return self.settings.nodes * self.settings.cpus

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables by which Slurm's commands find the cluster."""
        return {"SLURM_CONF": str(self._conf)}

    @property
    def is_up(self) -> bool:
        """Whether the controller runs."""
        return self._pid("slurmctld") is not None

    def run(self, *command: str, patience: float = 30.0) -> str:
        """
        Run one of Slurm's commands on this cluster and return the output.

        Raises
        ------
        SiteError
            With the command's own words when it fails, or when it does not end.
        """
        try:
            done = subprocess.run(
                command,
                env=self._variables(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=patience,
                check=False,
            )
        except FileNotFoundError:
            raise SiteError(how_to_install([command[0]])) from None
        except subprocess.TimeoutExpired:
            raise SiteError(
                f"{command[0]} of {self.name} did not answer within {patience:g} s", transient=True
            ) from None
        if done.returncode:
            words = done.stderr.strip() or done.stdout.strip()
            raise SiteError(f"{command[0]} of {self.name} failed: {words}")
        return done.stdout

    def states(self) -> dict[str, str]:
        """Return each node's state, in the words of ``sinfo``."""
        lines = self.run("sinfo", "--noheader", "--Node", "--format=%N %T").splitlines()
        return {node: state for node, _, state in (line.strip().partition(" ") for line in lines)}

    def node_is_running(self, node: str) -> bool:
        """Whether a node's daemon runs."""
        return self._pid(f"slurmd-{self._known(node)}") is not None

    def stop_node(self, node: str, *, at_once: bool = False) -> None:
        """
        Crash a node: daemon, step managers and jobs end without a report to the controller.

        Parameters
        ----------
        node
            Its name.
        at_once
            The controller is told that it is down, so that its jobs fail now; otherwise it
            finds out by itself, within half a minute, or within minutes by Slurm's own times.

        Raises
        ------
        InputError
            When there is no such node, or it has stopped already.
        """
        pid = self._pid(f"slurmd-{self._known(node)}")
        if pid is None:
            raise InputError(f"node {node} of {self.name} does not run")
        processes.end([pid], signal.SIGKILL)
        # Step managers stand still before their jobs end: so they neither report it nor start more.
        place, word = self._log(node), f"SLURMD_NODENAME={node}"
        found = self.processes()
        managers = [
            pid for pid in processes.node_processes(found, place, word) if found[pid] != "job"
        ]
        processes.end(managers, signal.SIGSTOP)
        processes.kill_until_none(lambda: processes.node_processes(self.processes(), place, word))
        self._pid_file(f"slurmd-{node}").unlink(missing_ok=True)
        # Without this the jobs count as running until the controller misses the node.
        if at_once:
            self.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=crashed")

    def start_node(self, node: str) -> None:
        """
        Start a stopped node, and return when the controller knows.

        Raises
        ------
        InputError
            When there is no such node, or it runs.
        SiteError
            When it does not come up.
        """
        if self.node_is_running(node):
            raise InputError(f"node {node} of {self.name} runs already")
        self._spawn_node(node)
        self.wait_for_daemons()
        if self.is_up:
            self._wait_for_nodes([node], 30.0)

    def stop_controller(self, *, crash: bool = False) -> None:
        """
        Stop the controller; jobs go on.

        Parameters
        ----------
        crash
            Whether the controller is killed. A killed one forgets about the last five seconds of
            changes, as Slurm writes the state in such steps; otherwise nothing is forgotten.

        Raises
        ------
        InputError
            When it does not run.
        SiteError
            When it does not end.
        """
        pid = self._pid("slurmctld")
        if pid is None:
            raise InputError(f"the controller of {self.name} does not run")
        processes.end([pid], signal.SIGKILL if crash else signal.SIGTERM)
        if not processes.wait_until(lambda: not processes.is_running(pid), 30.0):
            raise SiteError(f"slurmctld of {self.name} ({pid}) does not end", transient=True)
        self._pid_file("slurmctld").unlink(missing_ok=True)

    def start_controller(self) -> None:
        """
        Start the controller again, and return when the running nodes have registered.

        Raises
        ------
        InputError
            When it runs.
        SiteError
            When it does not come up.
        """
        if self.is_up:
            raise InputError(f"the controller of {self.name} runs already")
        self._spawn("slurmctld", "slurmctld", "-f", str(self._conf))
        self.wait_for_daemons()
        self._wait_until_heard()  # commands try again seconds later only
        running = [node for node in self.nodes if self.node_is_running(node)]
        if not processes.wait_until(self._answers, 30.0, 0.1):
            raise SiteError(f"slurmctld of {self.name} does not answer: {self._last_words()}")
        self.run("scontrol", "reconfigure")  # or else it asks the nodes seconds later only
        self._wait_for_nodes(running, 30.0)

    def down(self, grace: float = 2.0) -> None:
        """
        End every process of the cluster and of the jobs, and remove the folder.

        Parameters
        ----------
        grace
            Seconds that jobs have to end by themselves.
        """
        with grid_folder.lock_folder(self.folder):
            self.end_all(grace)
            grid_folder.remove(self.folder)

    def end_all(self, grace: float = 2.0) -> None:
        """
        End every process of the cluster.

        Raises
        ------
        SiteError
            When one is left.
        """
        for daemon in ("slurmctld", "slurmd"):  # no more jobs start
            processes.end(self._all(daemon), signal.SIGKILL)
        # Those whose parents end first could not be found again.
        known = processes.start_times(self._all())
        if jobs := self._all("job"):
            processes.end(jobs, signal.SIGTERM)
            processes.wait_until(lambda: not self._all("job"), grace)
        processes.end(self._all("slurmstepd"), signal.SIGSTOP)  # no more steps either

        def left() -> set[int]:
            still = processes.start_times(known).items() & known.items()
            return {*self._all(), *(pid for pid, _ in still)}

        ended = processes.kill_until_none(left, 20.0)
        for _, process in self._started:
            process.poll()
        self._started.clear()
        if not ended:
            names = ", ".join(f"{name} ({pid})" for pid, name in self.processes().items())
            raise SiteError(f"of cluster {self.name} in {self.folder} still run: {names}")

    def processes(self) -> dict[int, str]:
        """Return the cluster's processes by number, with the daemon's name or ``"job"``."""
        return processes.cluster_processes(
            self.folder, DAEMONS, job="SLURM_JOB_ID", setting=self.environment
        )

    def begin(self) -> None:
        """
        Write the cluster's files, start munged and the controller; the nodes are started later.

        Raises
        ------
        SiteError
            When it does not start.
        """
        for name in ("etc", "state", "spool", "log", "run"):
            (self.folder / name).mkdir(mode=0o755)
        for node in self.nodes:
            (self.folder / "spool" / node).mkdir(mode=0o755)
            self._log(node).mkdir(mode=0o755)
        user = pwd.getpwuid(os.geteuid()).pw_name
        self._conf.write_text(slurm_configuration.slurm_conf(self.settings, self.folder, user))
        if _looks_for_control_groups():
            (self.folder / "etc" / "cgroup.conf").write_text("CgroupPlugin=disabled\n")
        if self.settings.gpus:
            slurm_configuration.write_gpus(self.settings, self.folder)
        if self.settings.latency:
            script = slurm_configuration.job_submit_lua(self.settings.latency)
            (self.folder / "etc" / "job_submit.lua").write_text(script)
        key = self.folder / "etc" / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        self._spawn_munged(key)
        self.wait_for_daemons()
        self._spawn("slurmctld", "slurmctld", "-f", str(self._conf))
        self.wait_for_daemons()

    def begin_nodes(self) -> None:
        """Start the daemons of the nodes, without waiting for readiness."""
        self._wait_until_heard()  # or else they try again a second later only
        for node in self.nodes:
            self._spawn_node(node)

    def wait_for_daemons(self) -> None:
        """
        Wait until each started daemon has gone to the background, as daemons do when ready.

        Raises
        ------
        SiteError
            When one of them failed.
        """
        failed = []
        while self._started:
            name, process = self._started[0]
            try:
                status = process.wait(60.0)
            except subprocess.TimeoutExpired:
                process.kill()
                status = process.wait()
            del self._started[0]
            if status:
                failed.append(name)
        if failed:
            raise SiteError(
                f"{failed[0]} of cluster {self.name} did not start: {self._last_words(failed[0])}"
            )

    def wait_until_ready(self, patience: float) -> None:
        """Wait until every node is there."""
        self._wait_for_nodes(self.nodes, patience)

    def _wait_for_nodes(self, nodes: Sequence[str], patience: float) -> None:
        begin = time.monotonic()

        def ready() -> bool:
            if time.monotonic() > begin + 2.0:  # by now a live daemon has its pid file
                self._need(nodes)
            try:
                states = self.states()
            except SiteError:
                return False
            return all(states.get(node) in READY for node in nodes)

        if not processes.wait_until(ready, patience, 0.05):
            raise SiteError(
                f"not all nodes of cluster {self.name} are there after {patience:g} s:"
                f" {self._last_words()}"
            )

    def _need(self, nodes: Sequence[str]) -> None:
        """Check for daemons that ended just after the start, as when a port is taken."""
        for daemon, log in (
            ("slurmctld", "slurmctld"),
            *((f"slurmd-{node}", f"{node}/slurmd") for node in nodes),
        ):
            if self._pid(daemon) is None:
                said = self._last_words(log)
                raise SiteError(f"{daemon} of cluster {self.name} ended: {said}")

    def _wait_until_heard(self) -> None:
        """Wait until the controller listens, 20 s at most."""
        processes.wait_until(lambda: not ports.is_free(self.settings.port), 20.0)

    def _answers(self) -> bool:
        try:
            return "is UP" in self.run("scontrol", "ping")
        except SiteError:
            return False

    def _spawn_munged(self, key: Path) -> None:
        run = self.folder / "run"
        self._spawn(
            "munged",
            "munged",
            f"--key-file={key}",
            f"--socket={run}/munge.sock",
            f"--pid-file={run}/munged.pid",
            f"--log-file={self.folder}/log/munged.log",
            f"--seed-file={run}/munged.seed",
            "--num-threads=2",
            # It insists on parents that all may search; its users are ours alone where not.
            *(() if _is_open(self.folder) else ("--force",)),
        )

    def _spawn_node(self, node: str) -> None:
        self._spawn(f"{node}/slurmd", "slurmd", "-f", str(self._conf), "-N", node)

    def _spawn(self, name: str, *command: str) -> None:
        with self._log(f"{name}.out").open("wb") as out:
            process = subprocess.Popen(
                command,
                cwd=self._log(name).parent,
                env=self._variables(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                # Away from the terminal, whose Ctrl-C would end the daemons with the command that
                # started them.
                start_new_session=True,
            )
        self._started.append((name, process))

    def _all(self, name: str | None = None) -> list[int]:
        return [pid for pid, what in self.processes().items() if name in (None, what)]

    def _pid(self, daemon: str) -> int | None:
        """Return the process number of a daemon; None when the daemon does not run."""
        try:
            pid = int(self._pid_file(daemon).read_text())
        except (OSError, ValueError):
            return None
        # The number may be another's by now.
        return pid if processes.is_of(pid, self.folder) and processes.is_running(pid) else None

    def _log(self, name: str) -> Path:
        return self.folder / "log" / name

    def _pid_file(self, daemon: str) -> Path:
        return self.folder / "run" / f"{daemon}.pid"

    def _known(self, node: str) -> str:
        if node not in self.nodes:
            raise InputError(
                f"cluster {self.name} has no node {node!r}, but {self.nodes[0]} to {self.nodes[-1]}"
            )
        return node

    @property
    def _conf(self) -> Path:
        return self.folder / "etc" / "slurm.conf"

    def _variables(self) -> dict[str, str]:
        """Return our environment without the variables of another Slurm's jobs and commands."""
        own = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SLURM", "SBATCH_", "SQUEUE_", "SINFO_", "SACCT_", "SCANCEL_"))
        }
        return {**own, "PATH": search_path(), **self.environment}

    def _last_words(self, name: str = "slurmctld") -> str:
        """Return the last lines of a daemon's log, before the folder is removed."""
        for ending in ("out", "log"):
            path = self._log(f"{name}.{ending}")
            if not path.exists():
                continue
            lines = path.read_text(errors="replace").split("\n")[-4:]
            if words := "; ".join(line.strip() for line in lines if line.strip()):
                return words
        return "it said nothing"


def start_all(
    wanted: Mapping[Path, SlurmClusterSettings], *, patience: float = 60.0, tries: int = 3
) -> list[SlurmCluster]:
    """
    Start several clusters together in empty folders; all or none.

    Raises
    ------
    SiteError
        When a daemon does not start; then the folders are empty.
    """
    for left in reversed(range(tries)):
        try:
            with ports.port_lock():
                return _start_together(wanted, patience)
        except SiteError as error:
            # Somebody took a port between our look and our start.
            if not left or "already in use" not in str(error):
                raise
    raise AssertionError("unreachable")


def _start_together(
    wanted: Mapping[Path, SlurmClusterSettings], patience: float
) -> list[SlurmCluster]:
    clusters: list[SlurmCluster] = []  # all are up at the end; if one fails, all are removed
    try:
        # One block for all clusters, chosen under the lock: each controller and each node has a
        # port of its own.
        port = ports.free_block(sum(settings.nodes + 1 for settings in wanted.values()))
        for folder, settings in wanted.items():
            clusters.append(_claim(folder, replace(settings, port=port)))
            port += settings.nodes + 1
        for cluster in clusters:
            cluster.begin()
        for cluster in clusters:
            cluster.begin_nodes()
        for cluster in clusters:
            cluster.wait_for_daemons()
        for cluster in clusters:
            cluster.wait_until_ready(patience)
    except BaseException:
        for cluster in clusters:
            cluster.end_all(grace=0.0)
            grid_folder.empty(cluster.folder)
        raise
    return clusters


def _claim(folder: Path, settings: SlurmClusterSettings) -> SlurmCluster:
    """Make a folder with nothing but the mark by which test clusters are known."""
    folder.mkdir(mode=0o755, exist_ok=True)
    grid_folder.mark(folder, MARK, msgspec.json.encode(settings))
    return SlurmCluster(folder, settings)


def _is_open(folder: Path) -> bool:
    """Return whether every user may search a folder and all its parents."""
    return all(path.stat().st_mode & stat.S_IXOTH for path in (folder, *folder.parents))


def _looks_for_control_groups() -> bool:
    """Return whether daemons look for control groups without a plugin: from 23.11 on."""
    said = subprocess.run(
        ["slurmd", "-V"], env={"PATH": search_path()}, capture_output=True, text=True, check=False
    ).stdout
    version = tuple(int(part) for part in re.findall(r"\d+", said)[:2])
    return version >= (23, 11)
