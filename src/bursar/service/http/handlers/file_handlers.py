"""Handlers for files of instances."""

import re
from collections.abc import Mapping
from contextlib import aclosing
from functools import partial
from pathlib import Path

from bursar.remote import messages as api
from bursar.service.files.confined_folders import parse_name
from bursar.service.files.file_store import FileOwner
from bursar.service.http.authorized_request import AuthorizedRequest
from bursar.service.http.queries import FilesQuery, PutQuery
from bursar.service.http.responses import BYTES, HttpResponse, StreamingResponse
from bursar.service.interfaces import ServiceError

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)


async def show_all(call: AuthorizedRequest, query: FilesQuery) -> api.FileList:
    """List an instance's files."""
    found = await call.file_store.files(_root(call), query.after, query.limit)
    return api.FileList(files=found)


async def get(call: AuthorizedRequest) -> HttpResponse | StreamingResponse:
    """Return a file's content."""
    return await send_file(call, _root(call), parse_name(call.path["name"]))


async def put(call: AuthorizedRequest, query: PutQuery) -> api.FileInfo:
    """Write a file, in place of one of that name."""
    parts = parse_name(call.path["name"])
    pieces = call.request.pieces(call.service.limits.file_bytes)
    return await call.file_store.put(
        _root(call),
        parts,
        pieces,
        executable=query.executable,
        owner=_owner(call),
    )


async def delete(call: AuthorizedRequest) -> None:
    """Delete a file or an empty folder."""
    await call.file_store.delete(_root(call), parse_name(call.path["name"]))


async def put_archive(call: AuthorizedRequest) -> api.FileList:
    """Unpack the files of an archive, all or none."""
    pieces = call.request.pieces(call.service.limits.archive_bytes)
    found = await call.file_store.unpack(_root(call), pieces, call.request.kind, _owner(call))
    return api.FileList(files=found)


async def copy(call: AuthorizedRequest, body: api.CopyRequest) -> api.FileList:
    """Copy files of another instance of the same user; missing ones are left out."""
    store, target = call.file_store, _root(call)
    source = call.service.engine.home(call.user, body.source) / "files"
    found: list[api.FileInfo] = []
    for parts in [parse_name(name, "files") for name in body.files]:
        try:
            file = await store.open(source, parts)
        except ServiceError as error:
            # A task need not have made every file that it may make.
            if error.status != 404:
                raise
            continue
        async with aclosing(file):
            info = await store.put(
                target,
                parts,
                file,
                executable=file.executable,
                owner=_owner(call),
            )
        found.append(info)
    return api.FileList(files=found)


async def send_file(
    call: AuthorizedRequest, root: Path, parts: tuple[str, ...]
) -> HttpResponse | StreamingResponse:
    """
    Return a file below a folder, or the requested range of it (RFC 9110, section 14).

    Raises
    ------
    ServiceError
        404, when there is none; 416, when the part lies behind its end.
    """
    file = await call.file_store.open(root, parts)
    headers: tuple[tuple[str, str], ...] = (
        ("accept-ranges", "bytes"),
        ("etag", file.tag),
        # A task may have written HTML, which no browser should show as a page of the service.
        ("content-disposition", "attachment"),
    )
    if file.executable:
        headers += (("bursar-executable", "true"),)
    part = requested_range(call.request.headers, file.size, file.tag)
    if part is None:
        return StreamingResponse(file, BYTES, 200, file.size, headers)
    start, size = part
    if not size:
        await file.aclose()
        raise ServiceError("bad-range", 416, f"there are {file.size} bytes", where="Range")
    file.part(start, size)
    headers += (("content-range", f"bytes {start}-{start + size - 1}/{file.size}"),)
    return StreamingResponse(file, BYTES, 206, size, headers)


def requested_range(headers: Mapping[str, str], size: int, tag: str) -> tuple[int, int] | None:
    """
    Return start and length of the requested range of a file.

    Parameters
    ----------
    size, tag
        Bytes and entity tag of the file now.

    Returns
    -------
    tuple or None
        None for all of it: also when several parts are asked for, or a part of what it was before
        (``If-Range``). A length of 0: the part lies behind the end.
    """
    match = _RANGE.fullmatch(headers.get("range", ""))
    # What is not understood is ignored, as RFC 9110 (section 14.2) allows: the whole file is a
    # correct answer. So is it when the file is no longer the one of which the client has a part.
    if match is None or headers.get("if-range", tag) != tag:
        return None
    first, last = match.groups()
    if not first:
        if not last:
            return None
        # ``bytes=-N``: the last N bytes, or all of a shorter file.
        length = min(int(last), size)
        return size - length, length
    start = int(first)
    end = int(last) if last else size - 1
    if last and end < start:
        return None
    return start, max(0, min(end, size - 1) - start + 1)


def _root(call: AuthorizedRequest) -> Path:
    return call.service.engine.home(call.user, call.handle) / "files"


def _owner(call: AuthorizedRequest) -> FileOwner:
    return FileOwner(
        user=call.user, limits=call.limits, homes=partial(call.service.engine.homes, call.user)
    )
