"""
This room models a batch-scheduled cluster: policies, reservations and free slots.

- :class:`bursar.cluster.machine.Machine` holds the jobs of a cluster and advances in time.
- :mod:`bursar.cluster.simulation` runs a whole trace, :mod:`bursar.cluster.slots` finds free slots.
- :mod:`bursar.cluster.element` keeps one site's queue and a forecast of it.
"""
