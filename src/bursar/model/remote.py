"""How another Bursar is reached that is used as a site."""

from dataclasses import dataclass
from typing import Literal

SealLevel = Literal["conversation", "message"]
"""
Whether one agreement on keys seals many tasks, or each task and result has its own: GSI *secure
conversation* and *secure message* in table 2 of the DRP paper.
"""

Trust = Literal["data", "pickle"]
"""
Whether results of Python calls come back as data, which can run no code here, or as pickles, by
which whoever makes them runs code as the user who reads them.
"""

PATIENCE = 30.0
"""Seconds for which a service that does not answer is waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteEndpoint:
    """
    Describes an execution service and the connection to the service.

    Parameters
    ----------
    url
        Address of the service, ``"https://host:port"``.
    token_file
        File whose only line is the user's token; empty: there is none.
    ca, certificate, key
        PEM files, of TLS; empty: the system's authorities, and no certificate of one's own.
    fingerprint
        SHA-256 of the service's certificate, hexadecimal; empty: it is not looked at.
    seal
        How tasks are sealed, so that the service cannot read them; None: they are in clear.
    patience
        Seconds for which it may be out of reach before its processors count as lost.
    trust
        In what form results of Python calls come back from it.
    """

    url: str
    token_file: str = ""
    ca: str = ""
    certificate: str = ""
    key: str = ""
    fingerprint: str = ""
    seal: SealLevel | None = None
    patience: float = PATIENCE
    trust: Trust = "data"
