"""
The ``bursar`` command, with one module for each noun of the command line.

:func:`bursar.cli.main.main` is the entry point.
"""
