"""
Compiled loops in which planning spends most time: arrays and numbers only.

Compiled when first used, and then kept on disk; without Numba they run as the Python they are.
:mod:`ranks` walks the workflow, :mod:`availability` keeps the free processors of the slots,
:mod:`placing` puts one task into them, :mod:`lists` makes whole schedules, :mod:`levels` those by
level, :mod:`minmin` those that choose task and slot together.
"""
