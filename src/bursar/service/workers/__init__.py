"""Connections of workers, and the check of who is admitted."""

from bursar.service.workers.worker_server import WorkerServer

__all__ = ["WorkerServer"]
