"""Several throwaway clusters side by side, and the sites file that lists the clusters."""

import os
import pwd
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bursar.model.errors import InputError, SiteError
from bursar_devtools.testgrid import grid_folder, slurm, slurm_requirements
from bursar_devtools.testgrid.slurm import SlurmCluster
from bursar_devtools.testgrid.slurm_configuration import SlurmClusterSettings

MARK = "testgrid.json"
SITES = "testgrid.toml"
MOST_CLUSTERS = 20


def default_folder() -> Path:
    """
    Where a user's test grid lies when no folder is named.

    Not in the user's own runtime folder: munged wants its socket's parents to be searchable by
    all, and jobs of other users have to reach it.
    """
    return Path(tempfile.gettempdir()) / f"bursar-testgrid-{pwd.getpwuid(os.geteuid()).pw_name}"


def resolve_folder(folder: Path | None) -> Path:
    """Return the folder of a grid; where none is named, a link in its place is not followed."""
    if folder is not None:
        return folder.resolve()
    default = default_folder()
    return default.parent.resolve() / default.name


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """
    Status of a node of a throwaway cluster.

    Parameters
    ----------
    name
        Of the node.
    running
        Whether its daemon runs.
    state
        As the controller says it; None when it does not answer.
    """

    name: str
    running: bool
    state: str | None


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """
    Status of a throwaway cluster.

    Parameters
    ----------
    cluster
        Which one.
    up
        Whether its controller runs.
    nodes
        Each of them.
    running, pending
        Jobs; None when the controller does not answer.
    """

    cluster: SlurmCluster
    up: bool
    nodes: tuple[NodeStatus, ...]
    running: int | None
    pending: int | None

    @property
    def is_whole(self) -> bool:
        """Whether controller and nodes are all there."""
        return self.up and all(node.running and node.state in slurm.READY for node in self.nodes)


class LocalTestGrid:
    """
    The test grid in a folder, from which all state is read.

    Attributes
    ----------
    folder
        Resolved.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def up(
        cls,
        folder: Path | None = None,
        *,
        clusters: int = 2,
        nodes: int = 8,
        cpus: int = 12,
        latency: int = 0,
        default_times: bool = False,
    ) -> "LocalTestGrid":
        """
        Starts clusters ``slurm1``, ``slurm2``, ... and writes a sites file that has them.

        Parameters
        ----------
        folder
            None: :func:`default_folder`. Made, unless it is there and empty. What a grid left
            there of which nothing runs any more is removed first.
        clusters, nodes, cpus
            How many; nodes of each cluster, processors of each node.
        latency
            Whole seconds from a job's submission to its start at the soonest.
        default_times
            Whether Slurm's own times hold rather than short ones; see
            :class:`bursar_devtools.testgrid.slurm_configuration.SlurmClusterSettings`.

        Raises
        ------
        InputError
            When a number is out of range, or the folder is in use.
        SiteError
            When Slurm is missing, or does not start; then nothing is left behind.
        """
        path = resolve_folder(folder)
        if not 1 <= clusters <= MOST_CLUSTERS:
            raise InputError(f"clusters must be 1 to {MOST_CLUSTERS}, got {clusters}")
        wanted = {
            path / f"slurm{number}": SlurmClusterSettings(
                name=f"slurm{number}",
                nodes=nodes,
                cpus=cpus,
                latency=latency,
                default_times=default_times,
            )
            for number in range(1, clusters + 1)
        }
        for place, settings in wanted.items():
            slurm_requirements.check(place, settings)
        with grid_folder.create_locked(path):
            grid = cls(path)
            if grid_folder.is_marked(path, MARK):
                if any(cluster.processes() for cluster in grid.clusters):
                    raise InputError(
                        "a test grid runs here already",
                        where=str(path),
                        hint="bursar testgrid down ends it; or name another with --folder",
                    )
                grid_folder.empty(path)
            grid_folder.need_empty(path)
            try:
                grid_folder.mark(path, MARK, msgspec.json.encode({"clusters": clusters}))
                slurm.start_all(wanted)
                grid.sites_file.write_text(_sites(grid.clusters))
            except BaseException:
                grid._end()
                raise
        return grid

    @classmethod
    def at(cls, folder: Path | None = None) -> "LocalTestGrid":
        """
        Return the test grid of a folder, running or not.

        Raises
        ------
        InputError
            When there is none, or it is another user's.
        """
        path = resolve_folder(folder)
        grid_folder.need_own(path)
        if not grid_folder.is_marked(path, MARK):
            raise InputError(
                "no test grid is there", where=str(path), hint="bursar testgrid up starts one"
            )
        return cls(path)

    @property
    def clusters(self) -> tuple[SlurmCluster, ...]:
        """Clusters that were started, or were about to be."""
        found = (SlurmCluster.at(mark.parent) for mark in self.folder.glob(f"*/{slurm.MARK}"))
        return tuple(sorted(found, key=lambda cluster: cluster.settings.port))

    def cluster(self, name: str) -> SlurmCluster:
        """
        The cluster of that name.

        Raises
        ------
        InputError
            When there is none.
        """
        known = {cluster.name: cluster for cluster in self.clusters}
        if name not in known:
            raise InputError(
                f"no cluster {name!r}, but {', '.join(known) or 'none'}", where=str(self.folder)
            )
        return known[name]

    @property
    def sites_file(self) -> Path:
        """The sites file of the grid, for the option ``--sites``."""
        return self.folder / SITES

    def status(self) -> tuple[ClusterStatus, ...]:
        """Return the status of each cluster."""
        return tuple(map(_status, self.clusters))

    def down(self) -> None:
        """
        Ends every process and removes every file of the grid.

        Raises
        ------
        SiteError
            When a process is left.
        """
        with grid_folder.lock_folder(self.folder):
            self._end()

    @classmethod
    def clear(cls, folder: Path | None = None) -> list[str]:
        """
        Ends what there is in a folder, if there is anything; names of the clusters that were.

        Raises
        ------
        InputError
            When something else is in it.
        SiteError
            When a process is left.
        """
        path = resolve_folder(folder)
        if not path.exists():
            return []
        if not grid_folder.is_marked(path, MARK) and grid_folder.is_unused(path):
            with grid_folder.lock_folder(path):  # a start that was killed in its first moment
                grid_folder.remove(path)
            return []
        grid = cls.at(path)
        names = [cluster.name for cluster in grid.clusters]
        grid.down()
        return names

    def _end(self) -> None:
        with ThreadPoolExecutor() as pool:  # jobs of all clusters have their grace together
            list(pool.map(SlurmCluster.end_all, self.clusters))
        grid_folder.remove(self.folder)


def _status(cluster: SlurmCluster) -> ClusterStatus:
    states: dict[str, str] = {}
    jobs: list[str] | None = None
    if cluster.is_up:
        try:
            states = cluster.states()
            jobs = cluster.run("squeue", "--noheader", "--array", "--format=%t").split()
        except SiteError:
            jobs = None
    return ClusterStatus(
        cluster,
        cluster.is_up,
        tuple(
            NodeStatus(node, cluster.node_is_running(node), states.get(node))
            for node in cluster.nodes
        ),
        None if jobs is None else len(jobs) - jobs.count("PD"),
        None if jobs is None else jobs.count("PD"),
    )


def _sites(clusters: tuple[SlurmCluster, ...]) -> str:
    """The sites file; the further a cluster, the dearer."""
    local = f"""\
[site.local]
kind = "local"
processors = {len(os.sched_getaffinity(0))}
unit_price = "1 SU/core-hour"
"""
    return "\n".join(
        [
            local,
            *(
                f"""\
[site.{cluster.name}]
kind = "slurm"
processors = {cluster.processors}
unit_price = "{price} SU/core-hour"
queue = "main"
environment = {{ SLURM_CONF = "{cluster.environment["SLURM_CONF"]}" }}
reach = "127.0.0.1"
"""
                for price, cluster in enumerate(clusters, start=1)
            ),
        ]
    )
