"""
What the engine (:mod:`bursar.engine`) and its workers (:mod:`bursar.worker`) are made of.

- :mod:`bursar.dispatch.wire` holds the messages between dispatcher and worker.
- :mod:`bursar.dispatch.journal` is the run's journal.
"""
