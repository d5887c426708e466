"""
Runs are made, carried out, resumed and read back here; a run is a folder.

The package sits above sites, dispatch and report because it joins them: it
starts the workers, feeds the dispatcher, and writes what a person reads.
"""
