"""Job files of other tools: scripts for sbatch and their like, read as campaigns."""
