"""
This package holds the tables and figures of five papers as experiments that anyone can rerun.

An experiment is a :class:`bursar_papers.experiment.Experiment`;
:mod:`bursar_papers.experiment_runner` measures its cells, :mod:`bursar_papers.equivalence`
judges what was measured against what the paper states, and :mod:`bursar_papers.reproduce` is the
command ``bursar reproduce``.
"""
