"""Where workers report: their connections, and who is let in."""

from bursar.service.workers.worker_server import WorkerServer

__all__ = ["WorkerServer"]
