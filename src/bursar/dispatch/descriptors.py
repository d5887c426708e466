"""Number of connections that the limit on open files allows."""

import resource

_FILES = 4
"""File descriptors for each connection: the socket, and files opened for the peer."""


def affordable_connections(connections: int) -> int:
    """Return this number of connections, or the smaller one that the process may have open."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return connections
    return max(1, min(connections, descriptors // _FILES))
