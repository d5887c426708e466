"""
A worker is a small process that runs tasks for a dispatcher and reports the outcomes.

- :mod:`bursar.worker.worker` is the program (``python -m bursar.worker.worker``);
  :mod:`bursar.worker.launch` starts and watches worker processes on this machine,
  :mod:`bursar.worker.detached_workers` starts those that outlive their starter.
- :mod:`bursar.worker.attempt` carries out one attempt of a task; :mod:`bursar.worker.staging`
  brings its files, :mod:`bursar.worker.spawning` starts its programs,
  :mod:`bursar.worker.python_calls` runs Python functions.
- :mod:`bursar.worker.confined_files`, :mod:`bursar.worker.accounts`,
  :mod:`bursar.worker.detached_workers` and :mod:`bursar.worker.accounts` keep tasks of
  different users apart.
"""
