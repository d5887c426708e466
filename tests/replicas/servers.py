"""Servers to copy from: HTTP with every fault that was asked for, and SFTP."""

import hashlib
import os
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import paramiko


def sha256(data: bytes) -> str:
    """As the catalogue writes it."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@dataclass
class Page:
    """
    What one path answers with.

    Parameters
    ----------
    body
        The content.
    status
        Instead of 200.
    cuts
        Bytes after which the connection breaks off, for the first requests; then no more.
    claimed
        Content-Length, of a liar.
    ranges
        Whether parts may be asked for.
    hangs
        Says nothing, until the server is closed.
    tagged
        Whether it sends an ETag.
    pause
        Seconds between blocks.
    authorization
        That must be given.
    """

    body: bytes = b""
    status: int = 200
    cuts: list[int] = field(default_factory=list)
    claimed: int | None = None
    ranges: bool = True
    hangs: bool = False
    tagged: bool = True
    pause: float = 0.0
    authorization: str | None = None


class Web:
    """
    A server of pages.

    Attributes
    ----------
    pages
        By path.
    sent
        Bytes of bodies that were sent, by path.
    asked
        The ranges asked for, in order; empty where none was.
    """

    def __init__(self) -> None:
        self.pages: dict[str, Page] = {}
        self.sent: dict[str, int] = {}
        self.asked: list[str] = []
        self.closing = threading.Event()
        web = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *words: object) -> None:
                pass

            def do_GET(self) -> None:
                web._answer(self)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def put(self, path: str, body: bytes, **how: Any) -> str:
        """A page, and its URL."""
        self.pages[path] = Page(body, **how)
        return f"http://127.0.0.1:{self.port}{path}"

    def close(self) -> None:
        """Ends it."""
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        page = self.pages.get(request.path, Page(status=404))
        span = request.headers.get("Range")
        self.asked.append(span or "")
        if page.hangs:
            self.closing.wait()
            return
        if page.authorization and request.headers.get("Authorization") != page.authorization:
            page = Page(status=401)
        body, status, start = page.body, page.status, 0
        tag = f'"{hashlib.md5(page.body).hexdigest()}"'
        if span and page.ranges and request.headers.get("If-Range", tag) == tag:
            start = int(re.fullmatch(r"bytes=(\d+)-", span)[1])  # type: ignore[index]
            status = 206 if start < len(body) else 416
        request.send_response(status)
        if status == 206:
            request.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        body = body[start:] if status in (200, 206) else b""
        request.send_header("Content-Length", str(page.claimed or len(body)))
        if page.tagged:
            request.send_header("ETag", tag)
        request.end_headers()
        if page.cuts:
            body = body[: page.cuts.pop(0)]
            request.close_connection = True
        if page.claimed:
            body = body[: page.claimed]
            request.close_connection = True
        block = 64 * 1024 if page.pause else max(1, len(body))
        for at in range(0, len(body), block):
            data = body[at : at + block]
            self.sent[request.path] = self.sent.get(request.path, 0) + len(data)
            try:
                request.wfile.write(data)
            except OSError:
                return
            if page.pause:
                self.closing.wait(page.pause)


@contextmanager
def a_web() -> Iterator[Web]:
    """A server, while it is needed."""
    web = Web()
    try:
        yield web
    finally:
        web.close()


class _Door(paramiko.ServerInterface):
    def check_auth_password(self, username: str, password: str) -> int:
        right = (username, password) == ("ann", "s3cret")
        return paramiko.AUTH_SUCCESSFUL if right else paramiko.AUTH_FAILED

    def get_allowed_auths(self, username: str) -> str:
        return "password"

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED


class _Files(paramiko.SFTPServerInterface):
    """The machine's own files."""

    def open(self, path: str, flags: int, attr: paramiko.SFTPAttributes) -> Any:
        mode = {os.O_RDONLY: "rb", os.O_WRONLY: "r+b"}.get(flags & 3, "r+b")
        try:
            file = os.fdopen(os.open(path, flags, 0o666), mode)
        except OSError as error:
            return paramiko.SFTPServer.convert_errno(error.errno or 0)
        handle = paramiko.SFTPHandle(flags)
        handle.readfile = handle.writefile = file  # type: ignore[attr-defined]
        handle.stat = lambda: paramiko.SFTPAttributes.from_stat(  # type: ignore[method-assign]
            os.fstat(file.fileno())
        )
        return handle

    def stat(self, path: str) -> Any:
        try:
            return paramiko.SFTPAttributes.from_stat(os.stat(path))
        except OSError as error:
            return paramiko.SFTPServer.convert_errno(error.errno or 0)

    lstat = stat

    def mkdir(self, path: str, attr: paramiko.SFTPAttributes) -> int:
        os.mkdir(path)
        return paramiko.SFTP_OK

    def remove(self, path: str) -> int:
        os.remove(path)
        return paramiko.SFTP_OK

    def posix_rename(self, oldpath: str, newpath: str) -> int:
        os.replace(oldpath, newpath)
        return paramiko.SFTP_OK


@contextmanager
def an_sftp(home: Path, *, known: bool = True) -> Iterator[str]:
    """
    An SFTP server, and the beginning of its URLs.

    Parameters
    ----------
    home
        In whose ``.ssh`` it is made known.
    """
    key = paramiko.RSAKey.generate(2048)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    transports: list[paramiko.Transport] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            transport = paramiko.Transport(connection)
            transports.append(transport)
            transport.add_server_key(key)
            transport.set_subsystem_handler("sftp", paramiko.SFTPServer, _Files)
            transport.start_server(threading.Event(), _Door())

    if known:
        (home / ".ssh").mkdir()
        line = f"[127.0.0.1]:{port} {key.get_name()} {key.get_base64()}\n"
        (home / ".ssh" / "known_hosts").write_text(line)
    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"ssh://ann:s3cret@127.0.0.1:{port}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
        for transport in transports:
            transport.close()
