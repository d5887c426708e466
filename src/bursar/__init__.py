"""Bursar plans, buys and runs computing campaigns by deadline and budget."""

__version__ = "0.1.0"
