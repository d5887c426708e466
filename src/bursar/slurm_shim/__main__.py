"""Runs a stand-in: ``python -m bursar.slurm_shim FOLDER NAME [WORDS...]``."""

import sys

from bursar.slurm_shim.command_line import main

sys.exit(main(sys.argv[1:]))
