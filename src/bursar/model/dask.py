"""Where an existing Dask cluster is found."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DaskEndpoint:
    """
    Describes a Dask scheduler and the connection to the scheduler.

    Parameters
    ----------
    scheduler
        Address of the scheduler, ``"tcp://host:port"`` or ``"tls://host:port"``.
    ca, certificate, key
        PEM files, of TLS; all three or none.
    """

    scheduler: str
    ca: str = ""
    certificate: str = ""
    key: str = ""
