"""
Configuration files of OptorSim, the simulator of the European DataGrid, read as they are.

A grid (``grid``), its jobs and files (``jobs``), what others leave of each link's bandwidth
over a day (``background``), and the file of parameters that names the others
(``parameters``). Sizes are in MB (10^6 bytes), bandwidths in Mbit/s, processors in kSI2000.
"""
