"""
The store: records that are durable together, on SQLite, and restored after any crash.

``disk`` is the folder below a store (lock, reserve, small files), ``record_store`` the records,
``record_table`` the SQL. The simulation of faults puts a virtual file system of its own below the
same code.
"""

from bursar.database_files import DiskBroken, DiskFull
from bursar.store.disk import DATABASE, Disk, RealDisk
from bursar.store.record_store import (
    ASK_AGAIN,
    Position,
    RecordOwner,
    RecordStore,
    read_records,
)

__all__ = [
    "ASK_AGAIN",
    "DATABASE",
    "Disk",
    "DiskBroken",
    "DiskFull",
    "Position",
    "RealDisk",
    "RecordOwner",
    "RecordStore",
    "read_records",
]
