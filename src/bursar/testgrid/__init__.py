"""
This room starts throwaway clusters under real batch schedulers on this machine.

:class:`bursar.testgrid.local_grid.LocalTestGrid` is what ``bursar testgrid`` uses.
"""
