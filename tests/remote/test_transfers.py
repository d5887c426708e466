"""Files, up and down, over lines that break."""

import asyncio
import hashlib
import os
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import pytest
from tests.remote.conftest import BodyWithoutConnection, Line, client_of, params_of, simulated

from bursar.model.errors import InputError, SiteError
from bursar.remote.http_transport import (
    ClientRequest,
    ClientResponse,
    RemoteProblem,
    ServiceUnreachable,
    TransportError,
)
from bursar.remote.messages import FileInfo, FileList
from bursar.remote.transfers import local_path

CONTENT = bytes(range(256)) * 40


class Part(BodyWithoutConnection):
    """
    Some bytes, after which the connection breaks.

    Parameters
    ----------
    data
        The bytes.
    breaks
        Whether it does.
    """

    def __init__(self, data: bytes, breaks: bool) -> None:
        self._data = data
        self._breaks = breaks

    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        yield self._data
        if self._breaks:
            raise TransportError("reset")


class Shelf:
    """
    A file, and after how many bytes each answer breaks off.

    Parameters
    ----------
    breaks
        The last one does not.
    tag
        Its ETag; empty: none.
    """

    def __init__(self, *breaks: int, tag: str = '"1"') -> None:
        self.content = CONTENT
        self.tag = tag
        self._breaks = list(breaks)

    def __call__(self, request: ClientRequest) -> ClientResponse:
        """A part of it, or all."""
        start, status = 0, 200
        if "Range" in request.headers and request.headers["If-Range"] == self.tag:
            start, status = int(request.headers["Range"].removeprefix("bytes=")[:-1]), 206
        rest = self.content[start:]
        size = self._breaks.pop(0) if self._breaks else None
        headers = {"ETag": self.tag} if self.tag else {}
        return ClientResponse(
            status, headers=headers, stream=Part(rest[:size], breaks=size is not None)
        )


def test_what_breaks_off_is_gone_on_with(tmp_path: Path) -> None:
    """From the byte where it did."""
    line = Line(Shelf(1000, 500))
    target = tmp_path / "deep" / "file"
    assert simulated(client_of(line).download("h", "file", target)) == len(CONTENT)
    assert target.read_bytes() == CONTENT
    assert [request.headers.get("Range") for request in line.requests] == [
        None,
        "bytes=1000-",
        "bytes=1500-",
    ]


def test_a_file_that_has_changed_is_taken_from_its_begin(tmp_path: Path) -> None:
    """Two halves of two versions are no file."""
    shelf = Shelf(1000)

    def handler(request: ClientRequest) -> ClientResponse:
        answer = shelf(request)
        shelf.content, shelf.tag = b"another", '"2"'
        return answer

    assert simulated(client_of(handler).read("h", "file")) == b"another"


def test_without_a_tag_it_is_taken_from_its_begin() -> None:
    """Nobody knows whether it is the same."""
    assert simulated(client_of(Shelf(1000, 500, tag="")).read("h", "file")) == CONTENT


@pytest.mark.parametrize("executable", [True, False])
def test_a_program_that_is_downloaded_is_one(tmp_path: Path, executable: bool) -> None:
    """If the service says so, also where it broke off on the way."""
    shelf = Shelf(1000)

    def handler(request: ClientRequest) -> ClientResponse:
        answer = shelf(request)
        if executable:
            answer.headers["bursar-executable"] = "true"
        return answer

    simulated(client_of(handler).download("h", "tool", tmp_path / "tool"))
    assert os.access(tmp_path / "tool", os.X_OK) is executable
    assert (tmp_path / "tool").stat().st_mode & 0o7000 == 0


def test_a_download_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """And what was there before stays."""
    target = tmp_path / "file"
    target.write_text("before")

    def handler(_: ClientRequest) -> ClientResponse:
        return ClientResponse(404, content=b'{"title": "Not found", "status": 404}')

    with pytest.raises(RemoteProblem):
        simulated(client_of(handler).download("h", "file", target))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert target.read_text() == "before"


def test_a_download_to_where_nobody_may_write_says_so(tmp_path: Path) -> None:
    """With the path."""
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="cannot write it"):
        simulated(client_of(Shelf()).download("h", "x", tmp_path / "file" / "x"))


def test_an_upload_is_sent_again_from_its_begin(tmp_path: Path) -> None:
    """When it breaks off; what has arrived is held against what was sent."""
    source = tmp_path / "file"
    source.write_bytes(CONTENT * 100)
    received: list[bytes] = []

    def handler(request: ClientRequest) -> ClientResponse:
        received.append(request.content)
        if len(received) == 1:
            raise TransportError("reset")
        digest = hashlib.sha256(request.content).hexdigest()
        info = FileInfo(name="file", size=len(request.content), sha256=digest)
        return ClientResponse(200, content=msgspec.json.encode(info))

    line = Line(handler)
    info = simulated(client_of(line).upload("h", "file", source, executable=True))
    assert info.size == len(CONTENT) * 100
    assert received == [CONTENT * 100] * 2
    assert line.requests[0].headers["Content-Length"] == str(len(CONTENT) * 100)
    assert params_of(line.requests[0])["executable"] == "true"


def test_what_arrived_otherwise_is_told() -> None:
    """By its digest."""
    wrong = FileInfo(name="file", size=1, sha256="0" * 64)
    handler = Line(lambda _: ClientResponse(200, content=msgspec.json.encode(wrong)))
    with pytest.raises(SiteError, match="what arrived is not what was sent"):
        simulated(client_of(handler).upload("h", "file", b"x"))


def test_a_file_that_is_not_there_is_told_before_anything_is_sent(tmp_path: Path) -> None:
    """With its path."""
    line = Line(lambda _: ClientResponse(200))
    with pytest.raises(InputError, match="gone"):
        simulated(client_of(line).upload("h", "x", tmp_path / "gone"))
    with pytest.raises(InputError, match=r"expected \.tar"):
        simulated(client_of(line).upload_archive("h", tmp_path / "x.rar"))
    assert not line.requests


def test_many_files_are_listed_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until a page is not full."""
    monkeypatch.setattr("bursar.remote.async_client.PAGE", 2)
    names = ["a", "b", "c"]

    def handler(request: ClientRequest) -> ClientResponse:
        after = params_of(request).get("after", "")
        found = [FileInfo(name=name, size=1) for name in names if name > after][:2]
        return ClientResponse(200, content=msgspec.json.encode(FileList(files=found)))

    found = simulated(client_of(handler).files("h"))
    assert [file.name for file in found] == names


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", ""])
def test_a_name_of_the_services_does_not_lead_out_of_a_folder(name: str, tmp_path: Path) -> None:
    """A service may be anybody's."""
    with pytest.raises(InputError):
        local_path(tmp_path, name)
    assert local_path(tmp_path, "a//./b") == tmp_path / "a" / "b"


def test_a_download_without_an_end_is_given_up() -> None:
    """When nothing more comes for as long as patience is."""

    def handler(_: ClientRequest) -> ClientResponse:
        return ClientResponse(200, stream=Part(b"", breaks=True))

    async def read() -> float:
        with pytest.raises(ServiceUnreachable):
            await client_of(handler, patience=60.0).read("h", "file")
        return asyncio.get_running_loop().time()

    assert 45 <= simulated(read()) <= 60
