"""Opens the storage of a site: a folder on this machine, or a remote store with a URL."""

from bursar.model.errors import InputError
from bursar.replicas.site_storage import SiteStorage
from bursar.replicas.storage import FolderStorage
from bursar.replicas.url_storage import UrlStorage
from bursar.replicas.urls import is_local, normalise_url, redact_url


def open_storage(place: str, *, limit: int | None = None) -> SiteStorage:
    """
    Open the storage that a site's ``storage`` setting names.

    Parameters
    ----------
    limit
        Bytes that cached files may take; None: no limit.

    Raises
    ------
    InputError
        When it cannot be used, or a limit is given for what has a URL.
    """
    place = normalise_url(place)
    if is_local(place):
        return FolderStorage(place, limit=limit)
    if limit is not None:
        raise InputError("a limit is kept in folders only", where=redact_url(place))
    return UrlStorage(place)
