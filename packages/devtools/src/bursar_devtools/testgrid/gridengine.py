"""
A throwaway Grid Engine in one folder: queue master, one execution host and a root of its own.

Debian's 8.1.9 ("Son of Grid Engine") it is. It needs no systemd and no rights, and leaves alone
whatever Grid Engine there is. A host has one execution daemon, so it is one node of as many slots
as one likes; started by a plain user it runs that user's jobs only.
"""

import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

import msgspec

from bursar.model.errors import InputError, SiteError
from bursar_devtools.testgrid import grid_folder, ports, processes

PACKAGES = "gridengine-master gridengine-exec gridengine-client"
"""Debian's packages that hold it."""

PROGRAMS = Path("/usr/lib/gridengine")
"""Where these put their programs; what is on the PATH beside it are wrappers of them."""

SHARED = Path("/usr/share/gridengine")
DAEMONS = ("sge_qmaster", "sge_execd", "sge_shepherd")
MARK = "gridengine.json"
HOST = "localhost"
ENVIRONMENT = "smp"
"""Its parallel environment, for jobs with several slots of the one node."""

QUEUES: Mapping[str, str] = {"all.q": "INFINITY", "short.q": "0:10:0"}
"""Queues, with the longest time of a job in each."""

_NEEDED = ("sge_qmaster", "sge_execd", "sge_shepherd", "spoolinit", "qconf", "qsub", "qstat")
_ANSWER = 20.0  # seconds for a command of its own
_GROUPS = 1_000_000
"""First group number of jobs; far from those of people, and of another Grid Engine's jobs."""


class GridEngineClusterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a cluster is made of.

    Parameters
    ----------
    slots
        Of its node.
    shared
        Whether all queues together have so many; otherwise each has.
    port
        Of the queue master; the next one is the execution daemon's.
    queues
        Longest time of a job by queue, as ``h_rt`` has it; the first one is tried first.
    """

    slots: int
    port: int
    queues: Mapping[str, str]
    shared: bool = True


def missing_programs() -> list[str]:
    """Programs of Grid Engine that are not on this machine."""
    missing = [name for name in _NEEDED if not (PROGRAMS / name).exists()]
    return missing or [name for name in ("qsub", "qstat", "qacct") if shutil.which(name) is None]


class GridEngineCluster:
    """
    A cluster in a folder, from which all state is read.

    Use :meth:`up` or :meth:`at`.

    Attributes
    ----------
    folder
        Absolute path without symbolic links.
    settings
        Settings with which the cluster was made.
    """

    def __init__(self, folder: Path, settings: GridEngineClusterSettings) -> None:
        self.folder = folder
        self.settings = settings

    @classmethod
    def up(
        cls,
        folder: Path | str,
        *,
        slots: int = 4,
        queues: Mapping[str, str] = QUEUES,
        shared: bool = True,
        patience: float = 60.0,
    ) -> "GridEngineCluster":
        """
        Start a cluster and return when the node takes jobs.

        Parameters
        ----------
        folder
            Made, unless it is there and empty. A cluster in it of which nothing runs any more
            is removed first.
        slots, queues, shared
            As :class:`GridEngineClusterSettings` has them.
        patience
            Seconds after which it is given up.

        Raises
        ------
        InputError
            When a value is out of range, or the folder is in use.
        SiteError
            When programs are missing, or a daemon does not start; then nothing is left behind.
        """
        path = Path(folder).resolve()
        _check(path, slots, queues)
        if absent := missing_programs():
            raise SiteError(
                f"{', '.join(absent)}: not found; Debian and Ubuntu have Grid Engine in the"
                f" packages {PACKAGES}"
            )
        with grid_folder.create_locked(path):
            if grid_folder.is_marked(path, MARK):
                if cls.at(path).processes():
                    raise InputError("a test cluster runs here already", where=str(path))
                grid_folder.empty(path)
            grid_folder.need_empty(path)
            with ports.port_lock():
                settings = GridEngineClusterSettings(
                    slots=slots, shared=shared, port=ports.free_block(2), queues=dict(queues)
                )
                grid_folder.mark(path, MARK, msgspec.json.encode(settings))
                cluster = cls(path, settings)
                try:
                    cluster._start(patience)
                except BaseException:
                    cluster._end_all()
                    grid_folder.remove(path)
                    raise
        return cluster

    @classmethod
    def at(cls, folder: Path | str) -> "GridEngineCluster":
        """
        Return the cluster of a folder, running or not.

        Raises
        ------
        InputError
            When there is none.
        """
        path = Path(folder).resolve()
        try:
            settings = msgspec.json.decode(
                (path / MARK).read_bytes(), type=GridEngineClusterSettings
            )
        except (FileNotFoundError, NotADirectoryError):
            raise InputError("no Grid Engine is there", where=str(path)) from None
        except (OSError, msgspec.DecodeError) as error:
            raise InputError(f"cannot be read: {error}", where=str(path / MARK)) from None
        return cls(path, settings)

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables by which Grid Engine's commands find the cluster."""
        return {
            "SGE_ROOT": str(self.folder),
            "SGE_CELL": "default",
            "SGE_QMASTER_PORT": str(self.settings.port),
            "SGE_EXECD_PORT": str(self.settings.port + 1),
        }

    @property
    def is_up(self) -> bool:
        """Whether the queue master runs."""
        return bool(self._all("sge_qmaster"))

    def run(self, *command: str, stdin: str = "") -> str:
        """
        Run one of Grid Engine's commands on this cluster and return the output.

        Raises
        ------
        SiteError
            When it fails, or gives no answer.
        """
        try:
            done = subprocess.run(
                [str(PROGRAMS / command[0]), *command[1:]],
                env=self._variables(),
                cwd=self.folder,
                input=stdin,
                capture_output=True,
                text=True,
                timeout=_ANSWER,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise SiteError(f"{command[0]} gave no answer in {_ANSWER:g} s") from None
        if done.returncode:
            raise SiteError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def processes(self) -> dict[int, str]:
        """Return the cluster's processes by number, with the daemon's name or ``"job"``."""
        # Its jobs are told its root, but not its ports.
        return processes.cluster_processes(
            self.folder, DAEMONS, job="JOB_ID", setting={"SGE_ROOT": str(self.folder)}
        )

    def stop_node(self) -> None:
        """Crash the node: daemon and jobs end without a report to the queue master."""
        processes.end(self._all("sge_execd"), signal.SIGKILL)
        # Those that start jobs first, so that they cannot report their ends.
        processes.end(self._all("sge_shepherd"), signal.SIGKILL)
        processes.kill_until_none(lambda: self._all("job"))

    def start_node(self, patience: float = 30.0) -> None:
        """Start the node again, and return when the node takes jobs."""
        self._spawn("sge_execd")
        self._wait_until_ready(patience)

    def stop_controller(self) -> None:
        """Kill the queue master; the spooled state stays in the folder."""
        processes.end(self._all("sge_qmaster"), signal.SIGKILL)
        processes.wait_until(lambda: not self.is_up, 10.0)

    def start_controller(self, patience: float = 30.0) -> None:
        """
        Start the queue master again, and return when commands are answered.

        The node reconnects only after about a minute.
        """
        self._spawn("sge_qmaster")
        if not processes.wait_until(self._answers, patience, 0.05):
            raise SiteError(f"the queue master does not answer: {self._last_words()}")

    def down(self) -> None:
        """
        End every process of the cluster and of the jobs, and remove the folder.

        Raises
        ------
        SiteError
            When one is left.
        """
        with grid_folder.lock_folder(self.folder):
            self._end_all()
            grid_folder.remove(self.folder)

    def _end_all(self) -> None:
        """Kill all processes of the cluster, jobs too; raise SiteError when one is left."""

        def none_left() -> bool:
            # Daemons may start others between the listing and the kill, hence again and again.
            left = self.processes()
            processes.end(left, signal.SIGKILL)
            return not left

        if not processes.wait_until(none_left, 20.0):
            raise SiteError(f"of Grid Engine in {self.folder} still run: {self.processes()}")

    def _start(self, patience: float) -> None:
        self._lay_out()
        self._spawn("sge_qmaster")
        if not processes.wait_until(self._answers, patience, 0.05):
            raise SiteError(f"the queue master does not answer: {self._last_words()}")
        self._configure()
        self._spawn("sge_execd")
        self._wait_until_ready(patience)

    def _lay_out(self) -> None:
        """Write the files of an SGE root; programs are links to Debian's."""
        for name in ("default/common", "spool/qmaster/job_scripts", "spool/execd", "pe"):
            (self.folder / name).mkdir(parents=True)
        for name in ("bin", "lib", "utilbin"):
            (self.folder / name).mkdir()
            (self.folder / name / "lx-amd64").symlink_to(PROGRAMS)
        (self.folder / "util").symlink_to(SHARED / "util")
        user = pwd.getpwuid(os.geteuid()).pw_name
        common = self.folder / "default" / "common"
        spooling = f"{common};{self.folder}/spool/qmaster"
        (common / "bootstrap").write_text(_table(_bootstrap(self.folder, user, spooling)))
        # All by one name, whatever this machine calls itself and resolves to.
        (common / "host_aliases").write_text(f"{HOST} {socket.gethostname()}\n")
        # Where commands and the node look for the queue master.
        (common / "act_qmaster").write_text(f"{HOST}\n")
        shared = (SHARED / "default-configuration").read_text()
        settings = _changed(shared, _configuration(self.folder, self.settings))
        (self.folder / "configuration").write_text(settings)
        (self.folder / "pe" / ENVIRONMENT).write_text(_table(_parallel_environment()))
        resources = SHARED / "util" / "resources"
        self.run("spoolinit", "classic", "libspoolc", spooling, "init")
        for what, where in (
            ("configuration", self.folder / "configuration"),
            ("complexes", resources / "centry"),
            ("usersets", resources / "usersets"),
            ("pes", self.folder / "pe"),
            ("managers", user),
        ):
            self.run("spooldefaults", what, str(where))

    def _configure(self) -> None:
        """Configure what only a running queue master accepts."""
        self.run("qconf", "-as", HOST)
        self._hand_in("-Ae", _table(_execution_host(self.settings)))
        self._hand_in("-Ahgrp", _table({"group_name": "@allhosts", "hostlist": HOST}))
        self._hand_in("-Msconf", _changed(self.run("qconf", "-ssconf"), _SCHEDULER))
        template = self.run("qconf", "-sq")
        for number, (name, longest) in enumerate(self.settings.queues.items()):
            queue = _queue(name, number, longest, self.settings.slots)
            self._hand_in("-Aq", _changed(template, queue))

    def _hand_in(self, option: str, text: str) -> None:
        path = self.folder / "handed-in"
        path.write_text(text)
        self.run("qconf", option, str(path))

    def _spawn(self, daemon: str) -> None:
        """Start a daemon, which goes to the background at once and then writes to a log."""
        done = subprocess.run(
            [str(PROGRAMS / daemon)],
            cwd=self.folder,  # by which it is found while it starts
            env=self._variables(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            timeout=_ANSWER,
            check=False,
        )
        if done.returncode:
            raise SiteError(f"{daemon} did not start: {self._last_words()}")

    def _answers(self) -> bool:
        try:
            self.run("qconf", "-sm")
        except SiteError:
            return False
        return True

    def _wait_until_ready(self, patience: float) -> None:
        """Wait until every queue is there, and none is in a state that refuses jobs."""

        def ready() -> bool:
            try:
                text = self.run("qstat", "-f", "-xml")
            except SiteError:
                return False
            # A node that has just come is one of the last minutes' load, "au", for a moment.
            return text.count("<arch>lx") == len(self.settings.queues) and "<state>" not in (
                text.partition("</queue_info>")[0].replace("<state>r</state>", "")
            )

        if not processes.wait_until(ready, patience, 0.05):
            raise SiteError(f"the node is not there after {patience:g} s: {self._last_words()}")

    def _all(self, name: str) -> list[int]:
        return [pid for pid, what in self.processes().items() if what == name]

    def _variables(self) -> dict[str, str]:
        """Return our environment without the variables of another Grid Engine."""
        own = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SGE_", "JOB_", "GE_"))
        }
        return {**own, **self.environment}

    def _last_words(self) -> str:
        logs = sorted((self.folder / "spool").rglob("messages"), key=lambda p: p.stat().st_mtime)
        lines = [line for log in logs for line in log.read_text(errors="replace").splitlines()]
        return "; ".join(lines[-4:]) or "it said nothing"


_SCHEDULER = {
    "schedule_interval": "0:0:1",
    "flush_submit_sec": "1",  # 0 is "with the next interval"
    "flush_finish_sec": "1",
    # A busy machine starts jobs all the same.
    "job_load_adjustments": "NONE",
    "load_adjustment_decay_time": "0:0:0",
    "max_reservation": "32",
    "schedd_job_info": "true",
}


def _bootstrap(folder: Path, user: str, spooling: str) -> dict[str, str]:
    return {
        "admin_user": user,
        "default_domain": "none",
        "ignore_fqdn": "true",
        "spooling_method": "classic",
        "spooling_lib": "libspoolc",
        "spooling_params": spooling,
        "binary_path": f"{folder}/bin",
        "qmaster_spool_dir": f"{folder}/spool/qmaster",
        "security_mode": "none",
        "listener_threads": "2",
        "worker_threads": "2",
        "scheduler_threads": "1",
    }


def _configuration(folder: Path, settings: GridEngineClusterSettings) -> dict[str, str]:
    return {
        "execd_spool_dir": f"{folder}/spool/execd",
        "mailer": "/bin/true",
        "min_uid": "0",  # tests may run as root
        "min_gid": "0",
        "load_report_time": "00:00:01",
        "max_unheard": "00:00:03",
        "finished_jobs": "100",
        "gid_range": _groups(settings),
        "reporting_params": "accounting=true reporting=false flush_time=00:00:01"
        " accounting_flush_time=00:00:00 joblog=false sharelog=00:00:00",
    }


def _groups(settings: GridEngineClusterSettings) -> str:
    """
    Return the range of group numbers that mark the processes of jobs.

    Grid Engine kills by group number what a job leaves behind, so two clusters of root must not
    share any.
    """
    count = max(100, settings.slots * (1 if settings.shared else len(settings.queues)))
    mapped = max(
        (int(line.split()[0]) + int(line.split()[2]) for line in _lines("/proc/self/gid_map")),
        default=0,
    )
    first = _GROUPS + settings.port * count
    if first + count > mapped:  # within a container that has few of them
        first = 20_000 + settings.port % 300 * 100
    return f"{first}-{first + count}"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _parallel_environment() -> dict[str, str]:
    return {
        "pe_name": ENVIRONMENT,
        "slots": "9999",
        "user_lists": "NONE",
        "xuser_lists": "NONE",
        "start_proc_args": "NONE",
        "stop_proc_args": "NONE",
        "allocation_rule": "$pe_slots",
        "control_slaves": "TRUE",
        "job_is_first_task": "TRUE",
        "urgency_slots": "min",
        "accounting_summary": "TRUE",
        "qsort_args": "NONE",
    }


def _execution_host(settings: GridEngineClusterSettings) -> dict[str, str]:
    return {
        "hostname": HOST,
        "load_scaling": "NONE",
        "complex_values": f"slots={settings.slots}" if settings.shared else "NONE",
        "user_lists": "NONE",
        "xuser_lists": "NONE",
        "projects": "NONE",
        "xprojects": "NONE",
        "usage_scaling": "NONE",
        "report_variables": "NONE",
    }


def _queue(name: str, number: int, longest: str, slots: int) -> dict[str, str]:
    return {
        "qname": name,
        "hostlist": "@allhosts",
        "seq_no": str(number),
        "load_thresholds": "NONE",
        "pe_list": ENVIRONMENT,
        "slots": str(slots),
        "shell": "/bin/sh",
        "shell_start_mode": "unix_behavior",
        "h_rt": longest,
    }


def _table(values: Mapping[str, str]) -> str:
    return "".join(f"{name} {value}\n" for name, value in values.items())


def _changed(text: str, values: Mapping[str, str]) -> str:
    """Return a table of Grid Engine's with values replaced, or added where missing."""
    kept = [
        line
        for line in re.sub(r"\\\n\s*", "", text).splitlines()
        if line.split() and line.split()[0] not in values
    ]
    return "\n".join(kept) + "\n" + _table(values)


def _check(folder: Path, slots: int, queues: Mapping[str, str]) -> None:
    if slots < 1:
        raise InputError(f"slots must be at least 1, got {slots}")
    if not queues:
        raise InputError("a queue is needed")
    if re.search(r"[\s:;,%#\\'\"]", str(folder)):
        raise InputError(
            "Grid Engine's configuration takes no path with spaces, quotes or any of : ; , % #",
            where=str(folder),
        )
