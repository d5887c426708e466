"""
The engine that hands tasks to workers, for a run and for a service alike.

The pure part knows no clock, no input and no output:

- :mod:`bursar.engine.instance_tasks` has the tasks of one instance: states, dependencies, retries,
  delays; :mod:`bursar.engine.ready_tasks` the ready ones among them, in buckets.
- :mod:`bursar.engine.task_scheduler` gives tasks of many instances to the workers of pools
  (:mod:`bursar.engine.worker_slots`), in fair turns of the owners
  (:mod:`bursar.engine.fair_turns`), with backfilling around wide tasks
  (:mod:`bursar.engine.backfilling`).
- :mod:`bursar.engine.pool_demand` says which processors are wanted, and which waiting tasks are to
  come back for an idle worker.

The reaction to what happens, over one interface to connections:

- :mod:`bursar.engine.filling` gives out tasks and :mod:`bursar.engine.attempt_ends` takes in what
  became of them, for a run and for a service.
- :mod:`bursar.engine.core` holds the state of a run; :mod:`bursar.engine.reactor` and
  :mod:`bursar.engine.run_orders` are functions that change it when something has happened.
- :mod:`bursar.engine.worker_link` is the interface to a worker, over a socket
  (:mod:`bursar.engine.worker_connection`) or in the same process
  (:mod:`bursar.engine.run_workers`).
- :mod:`bursar.engine.transactions` writes the journal, many outcomes in one transaction.
- :mod:`bursar.engine.dispatcher` joins them for the owner of a run.
"""
