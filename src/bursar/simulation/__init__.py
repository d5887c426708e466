"""
This package simulates what surrounds a run: time, network, sites, workers and workloads.

- :mod:`bursar.simulation.virtual_loop` is the event loop on virtual time.
- :mod:`bursar.simulation.simulated_site` stands in for a site of a run.
- :mod:`bursar.simulation.datagrid` simulates a data grid: broker, storages and network.
"""
