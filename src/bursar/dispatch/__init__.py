"""
The dispatcher gives tasks to workers over a wire protocol and journals each outcome.

The dispatcher runs in the process that carries out a run; workers are processes of
their own (``python -m bursar.dispatch.worker``) that connect to it.

- :mod:`bursar.dispatch.server` is the dispatcher, :mod:`bursar.dispatch.worker` the worker.
- :mod:`bursar.dispatch.queue` decides which task is next, :mod:`bursar.dispatch.wire` holds the
  messages.
- :mod:`bursar.dispatch.journal` is the run's journal.
"""
