"""
Tasks to workers: the queue, the server, the worker, the wire, the journal.

The dispatcher runs in the process of whoever carries out a run; workers are
processes of their own that connect to it.
"""
