"""PBS, as OpenPBS and Torque have it: not run live, held to recorded outputs."""

from bursar.provisioning.lrm.pbs.pbs_adapter import PBS

__all__ = ["PBS"]
