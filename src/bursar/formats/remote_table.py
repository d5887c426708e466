"""What a sites file says of another Bursar."""

import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from bursar.formats.toml_reading import joined
from bursar.formats.units import parse_duration
from bursar.model.errors import InputError
from bursar.model.remote import PATIENCE, RemoteEndpoint

if TYPE_CHECKING:
    from bursar.formats.sites_toml import SiteTable

_FILES = ("token_file", "ca", "certificate", "key")
_OWN = ("url", "token_file", "fingerprint", "seal", "patience", "trust")
_TLS = ("ca", "certificate", "key", "fingerprint", "seal")

_URL = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?/?")
_FINGERPRINT = re.compile(r"[0-9A-Fa-f]{2}(:?[0-9A-Fa-f]{2}){31}")


def remote_of(table: "SiteTable", place: str, folder: Path) -> RemoteEndpoint | None:
    """
    The service of a site; None where it is none.

    Raises
    ------
    InputError
        When something is said of one that is not there, its files are missing, or others can
        read the token.
    """
    if table.kind != "remote":
        for key in _OWN:
            if getattr(table, key) is not None:
                raise InputError(
                    "goes with another Bursar only",
                    where=joined(place, key),
                    hint=(
                        "Dask's own protocol loads pickles whatever is said here"
                        if key == "trust" and table.kind == "dask"
                        else 'set kind = "remote"'
                    ),
                )
        return None
    if table.url is None or not _URL.fullmatch(table.url):
        raise InputError("expected its address, https://HOST:PORT", where=joined(place, "url"))
    for key in _TLS if table.url.startswith("http:") else ():
        if getattr(table, key) is not None:
            raise InputError("goes with an https:// address only", where=joined(place, key))
    if table.fingerprint is not None and not _FINGERPRINT.fullmatch(table.fingerprint):
        raise InputError(
            "expected a SHA-256, 64 hexadecimal digits", where=joined(place, "fingerprint")
        )
    if table.key is not None and table.certificate is None:
        raise InputError("a private key needs its certificate", where=joined(place, "key"))
    paths = {key: _file(table, key, place, folder) for key in _FILES}
    if paths["token_file"]:
        _check_private(paths["token_file"], joined(place, "token_file"))
    seal = "conversation" if table.seal is True else table.seal or None
    if seal is not None and not (paths["ca"] and paths["certificate"]):
        raise InputError('needs "ca" and "certificate"', where=joined(place, "seal"))
    return RemoteEndpoint(
        url=table.url.rstrip("/"),
        fingerprint=table.fingerprint or "",
        seal=seal,
        patience=_patience(table, place),
        trust=table.trust or "data",
        **paths,
    )


def _file(table: "SiteTable", key: str, place: str, folder: Path) -> str:
    said = getattr(table, key)
    if said is None:
        return ""
    path = folder / Path(said).expanduser()
    if not path.is_file():
        raise InputError(f"no file {path}", where=joined(place, key))
    return str(path.absolute())


def _check_private(path: str, where: str) -> None:
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode & 0o077:
        raise InputError(
            f"{path} may be read by others, its mode is {mode:04o}",
            where=where,
            hint=f"chmod 600 {path}",
        )


def _patience(table: "SiteTable", place: str) -> float:
    if table.patience is None:
        return PATIENCE
    try:
        return parse_duration(table.patience)
    except InputError as error:
        raise error.within(joined(place, "patience")) from None
