"""
This room holds the tables and figures of five papers as experiments that anyone can rerun.

An experiment is a :class:`bursar.papers.experiment.Experiment`;
:mod:`bursar.papers.experiment_runner` measures its cells, and :mod:`bursar.papers.equivalence`
judges what was measured against what the paper states.
"""
