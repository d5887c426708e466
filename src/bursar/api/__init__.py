"""
Plan a campaign, run one, or hand tasks to an executor, from Python.

The names to use are those of the package itself: ``bursar.plan``, ``bursar.run``,
``bursar.resume``, ``bursar.Executor``. :mod:`bursar.api.datagrid` simulates data grids.
"""
