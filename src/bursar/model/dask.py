"""Where an existing Dask cluster is found."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DaskEndpoint:
    """
    A scheduler of Dask's, and how it is spoken to.

    Parameters
    ----------
    scheduler
        Its address, ``"tcp://host:port"`` or ``"tls://host:port"``.
    ca, certificate, key
        PEM files, of TLS; all three or none.
    """

    scheduler: str
    ca: str = ""
    certificate: str = ""
    key: str = ""
