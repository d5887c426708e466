"""Grid Engine: run live under Son of Grid Engine 8.1.9, Debian's."""

from bursar.provisioning.lrm.gridengine.gridengine_adapter import GridEngine

__all__ = ["GridEngine"]
