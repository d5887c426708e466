"""Where workers report: their connections, and who is let in."""

from bursar.service.hub.hub import Hub

__all__ = ["Hub"]
