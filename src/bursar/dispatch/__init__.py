"""
The dispatcher gives tasks to workers over a wire protocol and journals each outcome.

The dispatcher runs in the process that carries out a run; workers (:mod:`bursar.worker`) are
processes of their own that connect to it.

- :mod:`bursar.dispatch.server` is the dispatcher; :mod:`bursar.dispatch.queue` decides which task
  is next.
- :mod:`bursar.dispatch.wire` holds the messages between dispatcher and worker.
- :mod:`bursar.dispatch.journal` is the run's journal.
"""
