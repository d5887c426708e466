"""PBS adapter, for OpenPBS and Torque: not run live, tested on recorded outputs."""

from bursar.provisioning.lrm.pbs.pbs_adapter import PBS

__all__ = ["PBS"]
