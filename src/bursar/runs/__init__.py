"""
A run is a folder: made, carried out, resumed and read back here.

This room sits above sites, dispatch and report because it joins them: it
starts the workers, feeds the dispatcher, and writes what a person reads.
"""
