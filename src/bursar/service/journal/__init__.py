"""
The service's journal: records in segments, durable together, restored after any crash.

A segment is a file ``journal-%08d.log``: a head (magic, version, number, checksum), then batches.
All that one sync makes durable is one batch: a record of its own kind that holds the size and the
checksum of what follows, then records (length, checksum, kind, payload). So a batch is there whole
or not at all, and that a batch begins tells that everything before it had been synced: what is
wrong before the beginning of a good batch was spoilt later, what is wrong after the last one was
torn by a crash.

Which records are dead is itself in records, in the batch of what took their place; a segment goes
when all of its records are dead, and one that is mostly dead is emptied by writing what lives
anew.
"""

from bursar.service.journal.segmented import SegmentedJournal

__all__ = ["SegmentedJournal"]
