"""Grouping of client addresses by subnet, so that one client cannot evade a limit."""

import ipaddress


def subnet_of(address: str) -> str:
    """
    Return the subnet that an address counts for: an IPv6 /64 network, or the IPv4 address.
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)
