"""
This room starts throwaway clusters under real batch schedulers on this machine.

:class:`bursar_devtools.testgrid.local_grid.LocalTestGrid` is what ``bursar testgrid`` uses.
"""
