"""
Stand-ins of Slurm's commands, for programs that drive Slurm: ``sbatch``, ``squeue`` and others.

``sbatch`` hands a script to a service as tasks, and the others tell what became of the tasks in
Slurm's words. A :class:`~bursar.slurm_shim.job_book.JobBook` keeps what a service does not know of
jobs: their numbers, names and options.
"""
