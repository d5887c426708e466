"""Grid Engine adapter: run live under Debian's Son of Grid Engine 8.1.9."""

from bursar.provisioning.lrm.gridengine.gridengine_adapter import GridEngine

__all__ = ["GridEngine"]
