"""PBS, as OpenPBS and Torque have it: not run live, held to recorded outputs."""

from bursar.provisioning.lrm.pbs.adapter import PBS

__all__ = ["PBS"]
