"""
The simulator of data grids, for Python.

A :class:`DataGrid` of sites, copies of files and a network; a :class:`GridWorkload`, drawn by
:func:`poisson` or made of arrays; a :class:`BrokerPolicy` of the broker, :class:`GridServices` and
:class:`GridFaults`: :func:`simulate` sends the load through it and answers with the lifetimes of
all jobs.
"""

from bursar.broker.status_feeds import IndexLevel
from bursar.model.matching import RankWeights
from bursar.simulation.datagrid.grid_outcome import (
    ConfidenceInterval,
    GridOutcome,
    batch_means,
    interval,
)
from bursar.simulation.datagrid.grid_simulation import simulate
from bursar.simulation.datagrid.scenario import (
    CURRENT,
    BrokerPolicy,
    DataGrid,
    GridFaults,
    GridJobClass,
    GridServices,
    GridWorkload,
    SiteOutage,
    poisson,
)

__all__ = [
    "CURRENT",
    "BrokerPolicy",
    "ConfidenceInterval",
    "DataGrid",
    "GridFaults",
    "GridJobClass",
    "GridOutcome",
    "GridServices",
    "GridWorkload",
    "IndexLevel",
    "RankWeights",
    "SiteOutage",
    "batch_means",
    "interval",
    "poisson",
    "simulate",
]
