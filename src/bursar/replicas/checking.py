"""Copies held against what the catalogue says of them."""

from dataclasses import dataclass

from bursar.model.replica import Replica
from bursar.replicas.catalogue import Catalogue
from bursar.replicas.content import content_of
from bursar.replicas.copying import PATIENCE, OnBytes, read_content
from bursar.replicas.failures import CancellationToken, SourceFailed


@dataclass(frozen=True, slots=True)
class CopyCheck:
    """
    What came of reading a copy.

    Parameters
    ----------
    replica
        The copy.
    fault
        What is wrong with it; None: nothing.
    bad
        Whether it is not what it should be; else it could not be read now.
    """

    replica: Replica
    fault: str | None = None
    bad: bool = False


def check_copy(
    catalogue: Catalogue,
    replica: Replica,
    *,
    patience: float = PATIENCE,
    on_bytes: OnBytes | None = None,
) -> CopyCheck:
    """
    Reads a copy, and lets the catalogue know whether it is good.

    Of a file whose content was not known, the catalogue learns it.
    """
    wanted = content_of(replica)
    try:
        found = read_content(
            replica.url, stop=CancellationToken(), patience=patience, on_bytes=on_bytes
        )
        if not found.agrees_with(wanted):
            raise SourceFailed(f"holds {found}, not {wanted}", bad=True)
    except SourceFailed as failure:
        if failure.bad:
            catalogue.report_bad(replica.name, replica.url, failure.reason)
        return CopyCheck(replica, failure.reason, failure.bad)
    catalogue.register(
        Replica(
            name=replica.name,
            site=replica.site,
            url=replica.url,
            size=found.size,
            checksum=found.checksum,
        )
    )
    return CopyCheck(replica)
