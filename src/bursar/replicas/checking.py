"""Verifies copies against their sizes and checksums in the catalogue."""

from dataclasses import dataclass

from bursar.model.replica import Replica
from bursar.replicas.catalogue import Catalogue
from bursar.replicas.content import content_of
from bursar.replicas.copying import PATIENCE, OnBytes, read_content
from bursar.replicas.failures import CancellationToken, SourceFailed


@dataclass(frozen=True, slots=True)
class CopyCheck:
    """
    The result of reading a copy.

    Parameters
    ----------
    replica
        The copy.
    fault
        What is wrong with the copy; None: nothing.
    bad
        Whether the content is wrong; otherwise the copy could not be read now.
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
    Read a copy and mark the copy in the catalogue as good or bad.

    An unknown size or checksum is registered.
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
