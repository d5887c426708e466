"""Grid Engine: run live under Son of Grid Engine 8.1.9, Debian's."""

from bursar.provisioning.lrm.gridengine.adapter import GridEngine

__all__ = ["GridEngine"]
