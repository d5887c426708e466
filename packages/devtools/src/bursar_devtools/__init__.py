"""
This package holds tools for developers of Bursar and for those who try schedulers.

- :mod:`bursar_devtools.testgrid` starts throwaway clusters under real batch schedulers.
- :mod:`bursar_devtools.faults` runs the whole service under seeded faults (``bursar-dst``).
- :mod:`bursar_devtools.simulated_manager` and :mod:`bursar_devtools.fork_manager` stand in for a
  batch scheduler: on virtual time, and as processes of this machine.
"""
