"""
Text in and out: campaign and sites files, plan files, recorded workflows.

Each reader is a module of its own, imported when a file of its kind is read.
Readers raise nothing but :class:`bursar.model.errors.BursarError`.
"""
