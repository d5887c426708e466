"""
This room makes, carries out, resumes and reads back runs; a run is a folder.

This room sits above sites, dispatch and report because it joins them: it
starts the workers, feeds the dispatcher, and writes what a person reads.
"""
