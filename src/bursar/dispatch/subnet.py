"""Addresses of one and the same somebody."""

import ipaddress


def subnet_of(address: str) -> str:
    """
    What stands for an address where somebody may have many: of IPv6 the network of 64 bits.
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
