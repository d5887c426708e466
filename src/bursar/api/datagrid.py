"""
The simulator of data grids, for Python.

A :class:`Grid` of sites, copies of files and a network; a :class:`Load`, drawn by
:func:`poisson` or made of arrays; a :class:`Policy` of the broker, :class:`Services` and
:class:`Faults`: :func:`simulate` sends the load through it and answers with the lifetimes of
all jobs. :func:`from_optorsim` takes all of that from OptorSim's configuration files.
"""

from bursar.broker.directory.hierarchy import Level
from bursar.model.weights import Weights
from bursar.simulation.datagrid.confidence import Interval, batch_means, interval
from bursar.simulation.datagrid.grid import CURRENT, Faults, Grid, Outage, Policy, Services
from bursar.simulation.datagrid.load import Kind, Load, poisson
from bursar.simulation.datagrid.optorsim import Setting, from_optorsim
from bursar.simulation.datagrid.outcome import Outcome
from bursar.simulation.datagrid.world import simulate

__all__ = [
    "CURRENT",
    "Faults",
    "Grid",
    "Interval",
    "Kind",
    "Level",
    "Load",
    "Outage",
    "Outcome",
    "Policy",
    "Services",
    "Setting",
    "Weights",
    "batch_means",
    "from_optorsim",
    "interval",
    "poisson",
    "simulate",
]
