"""What a sites file says of a Dask cluster."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from bursar.formats.toml_reading import joined
from bursar.model.dask import DaskEndpoint
from bursar.model.errors import InputError

if TYPE_CHECKING:
    from bursar.formats.sites_toml import SiteTable

_TLS = ("ca", "certificate", "key")

_ADDRESS = re.compile(r"(tcp|tls)://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")


def dask_of(table: "SiteTable", place: str, folder: Path) -> DaskEndpoint | None:
    """
    The Dask cluster of a site; None where it is none.

    Raises
    ------
    InputError
        When something is said of one that is not there, or its files are missing.
    """
    if table.kind != "dask":
        if table.scheduler is not None:
            raise InputError(
                "goes with a Dask cluster only",
                where=joined(place, "scheduler"),
                hint='set kind = "dask"',
            )
        for key in _TLS if table.kind != "remote" else ():
            if getattr(table, key) is not None:
                raise InputError(
                    "goes with a Dask cluster or another Bursar only", where=joined(place, key)
                )
        return None
    if not _is_address(table.scheduler or ""):
        raise InputError(
            "expected the address of its scheduler, as tcp://host:8786 or tls://host:8786",
            where=joined(place, "scheduler"),
        )
    assert table.scheduler is not None
    given = {key: getattr(table, key) for key in _TLS if getattr(table, key) is not None}
    secure = table.scheduler.startswith("tls:")
    for key in _TLS:
        if secure and key not in given:
            raise InputError("a tls:// scheduler needs it", where=joined(place, key))
        if not secure and key in given:
            raise InputError("goes with a tls:// scheduler only", where=joined(place, key))
        if secure and not (folder / given[key]).is_file():
            raise InputError(f"no file {folder / given[key]}", where=joined(place, key))
    paths = {key: str((folder / path).absolute()) for key, path in given.items()}
    return DaskEndpoint(scheduler=table.scheduler, **paths)


def _is_address(text: str) -> bool:
    found = _ADDRESS.fullmatch(text)
    return found is not None and 0 < int(found[3]) < 65536
