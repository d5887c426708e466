"""Slurm, by the commands that every user of it has."""

from bursar.provisioning.lrm.slurm.slurm_adapter import Slurm as Slurm
