"""
Readers of campaign files, sites files, plan files and recorded workflows.

Each reader is a module of its own, imported when a file of its kind is read.
Readers raise nothing but :class:`bursar.model.errors.BursarError`.
"""
