"""This room writes what a person reads of a run: results, bill, charts and ``report.html``."""
