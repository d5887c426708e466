"""Slurm adapter, by the commands that every user has."""

from bursar.provisioning.lrm.slurm.slurm_adapter import Slurm as Slurm
