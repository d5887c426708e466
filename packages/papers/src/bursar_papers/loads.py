"""The CTC log on 430 processors at the loads of HPDC'07 sections 5 and 6."""

from functools import lru_cache
from pathlib import Path

import numpy as np

from bursar.cluster.job_table import Early, Policy
from bursar.formats.trace_files import read_swf
from bursar.model.trace import Trace
from bursar.simulation.loaded_cluster import LoadedCluster
from bursar.simulation.workloads import probability_for
from bursar_papers.experiment import data_file

PROCESSORS = 430
DAY = 86_400
FIRST, LAST = 20 * DAY, 260 * DAY
"""Workflows are submitted between these moments of the log, which lasts 339 days."""
COPY_SEED = 1
"""Seed that chooses the jobs of the second copy: one log for each load."""


LOGS = {
    "CTC": ("CTC-SP2-1996-predictsim.swf.xz", PROCESSORS),
    "KTH": ("KTH-SP2-1996-2.1-cln.swf.xz", 100),
    "NASA": ("NASA-iPSC-1993-3.1-cln.swf.gz", 128),
    "HPC2N": ("HPC2N-2002-first-3170.swf.xz", 240),
    "Lublin": ("lublin_256.swf.xz", 256),
}
"""File and number of processors of each log, by name."""


@lru_cache(maxsize=2)
def read_ctc_log(data: Path, name: str) -> Trace:
    return read_swf(data_file(data, "swf", LOGS[name][0]))


def cluster_of_log(data: Path, name: str, seed: int, policy: Policy) -> LoadedCluster:
    """Return the machine of one of ``LOGS`` at a time in the log's middle three fifths."""
    trace = read_ctc_log(data, name)
    share = np.random.default_rng([seed, 5]).uniform(0.2, 0.8)
    # Whole seconds, as in the log.
    at = float(np.floor(trace.submit[0] + share * (trace.submit[-1] - trace.submit[0])))
    return LoadedCluster(trace, LOGS[name][1], at=at, policy=policy)


@lru_cache(maxsize=4)
def ctc_at_load(data: Path, utilisation: float | None) -> Trace:
    """
    Return the log, with a part of a second copy a week later that raises the load if wanted.

    Parameters
    ----------
    utilisation
        Load as a share of the processors; None: of the log alone, 65.7 % of 430.
    """
    trace = read_ctc_log(data, "CTC")
    if utilisation is None:
        return trace
    rng = np.random.default_rng(COPY_SEED)
    _, loaded = probability_for(trace, utilisation, rng, processors=PROCESSORS)
    return loaded


def submission_moment(seed: int) -> float:
    """Return the time at which a workflow is submitted, whole seconds of the log's clock."""
    return float(np.random.default_rng([seed, 430]).integers(FIRST, LAST))


@lru_cache(maxsize=2)
def _warm(
    data: Path,
    utilisation: float | None,
    at: float,
    policy: Policy,
    early: Early,
    looseness: float | None,
    processors: int,
) -> LoadedCluster:
    return LoadedCluster(
        ctc_at_load(data, utilisation),
        processors,
        at=at,
        policy=policy,
        early=early,
        looseness=looseness,
    )


def cluster_at(
    data: Path,
    at: float,
    utilisation: float | None = None,
    *,
    policy: Policy = "conservative",
    early: Early = "keep",
    looseness: float | None = 1.0,
    processors: int = PROCESSORS,
) -> LoadedCluster:
    """
    Return a copy of the cluster at a moment of the log.

    See :class:`bursar.simulation.loaded_cluster.LoadedCluster`.
    """
    # Warming the machine up takes far longer than a copy, and the plans of one moment are compared
    # on equal copies.
    return _warm(data, utilisation, at, policy, early, looseness, processors).copy()
