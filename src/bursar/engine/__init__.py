"""
The engine that hands tasks to workers, over one state and one interface to connections.

- :mod:`bursar.engine.core` holds the state; :mod:`bursar.engine.reactor` and
  :mod:`bursar.engine.filling` are functions that change it when something has happened.
- :mod:`bursar.engine.worker_link` is the interface to a worker, over a socket
  (:mod:`bursar.engine.worker_connection`) or in the same process
  (:mod:`bursar.engine.in_process`).
- :mod:`bursar.engine.transactions` writes the journal, many outcomes in one transaction.
- :mod:`bursar.engine.dispatcher` joins them for the owner of a run.
"""
