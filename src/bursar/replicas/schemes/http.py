"""
Copies behind HTTP: one request, from an offset on, through fsspec's session.

fsspec's own files fetch block by block, with a request for each, and decompress what the server
has compressed; a copy wants the stored bytes in one stream.
"""

import asyncio
import re
from base64 import b64encode
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar
from urllib.parse import unquote

import aiohttp
import fsspec
from fsspec.asyn import sync

from bursar.replicas.content import CancellationToken, SourceFailed, redact_urls, split_url
from bursar.replicas.schemes.source import NOT_THERE, SILENT, failing

T = TypeVar("T")
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
_LATER = {408, 425, 429}


class HttpSource:
    """A copy read from an HTTP server."""

    chunk = 1024 * 1024

    def __init__(
        self, url: str, offset: int, tag: str, patience: float, stop: CancellationToken
    ) -> None:
        self._stop = stop
        self._session, self._loop = _session(patience)
        plain, headers = _without_credentials(url)
        part = {"Range": f"bytes={offset}-"} if offset else {}
        if offset and tag:
            # With If-Range (RFC 9110, section 13.1.5) a server whose file has changed sends all of
            # it, not the rest of another version.
            part["If-Range"] = tag
        self._answer = self._wait(self._get(plain, headers | part))
        if self._answer.status == 416 and offset:  # it ends before: is another file now
            self.close()
            self._answer = self._wait(self._get(plain, headers))
        try:
            self._understand()
        except SourceFailed:
            self.close()
            raise

    def read(self, size: int) -> bytes:
        """Return at most ``size`` bytes; none at the end."""
        data: bytes = self._wait(self._answer.content.read(size))
        return data

    def close(self) -> None:
        """Close the connection, which is kept when all was read."""
        # aiohttp's objects belong to the loop's thread, this call to the copying one.
        self._loop.call_soon_threadsafe(self._answer.close)

    async def _get(self, url: str, headers: dict[str, str]) -> Any:
        return await self._session.get(url, headers=headers)

    def _understand(self) -> None:
        answer = self._answer
        if answer.status not in (200, 206):
            raise _refusal(answer.status)
        self.start, self.size = 0, answer.content_length
        if answer.status == 206:
            match = _RANGE.match(answer.headers.get("Content-Range", ""))
            if match is None:
                raise SourceFailed("answers with a part without saying of what")
            self.start = int(match[1])
            self.size = None if match[2] == "*" else int(match[2])
        # A weak tag (W/...) may stay the same while bytes change, and If-Range must not use one.
        strong = answer.headers.get("ETag", "")
        self.tag: str = strong if strong[:1] == '"' else answer.headers.get("Last-Modified", "")

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        with failing(), self._stop.by(future.cancel):
            try:
                return future.result()
            except TimeoutError:
                raise SourceFailed(SILENT, transient=True) from None
            except CancelledError:  # by another thread, or with the loop
                self._stop.check()
                raise SourceFailed("broke the connection off", transient=True) from None
            except aiohttp.ClientConnectorCertificateError:
                raise SourceFailed("has a certificate that is not trusted") from None
            except aiohttp.ClientConnectorError as error:
                raise error.os_error from None
            except (aiohttp.InvalidURL, ValueError):
                raise SourceFailed("is no URL that can be asked for") from None
            except aiohttp.ClientError as error:
                raise SourceFailed(
                    f"broke off ({redact_urls(str(error)) or type(error).__name__})",
                    transient=True,
                ) from None


def _refusal(status: int) -> SourceFailed:
    if status in (404, 410):
        return SourceFailed(NOT_THERE, bad=True)
    if status in (401, 403):
        return SourceFailed(f"may not be read (HTTP status {status})")
    later = status >= 500 or status in _LATER
    return SourceFailed(f"answers with HTTP status {status}", transient=later)


def _session(patience: float) -> tuple[Any, Any]:
    """Return the HTTP session and the event loop of the session."""
    system = fsspec.filesystem(
        "http",
        client_kwargs={
            "auto_decompress": False,
            # No limit in all, as a large file takes hours; only silence is limited.
            "timeout": aiohttp.ClientTimeout(total=None, sock_connect=patience, sock_read=patience),
            "trust_env": True,  # proxies, ~/.netrc
        },
    )
    return sync(system.loop, system.set_session), system.loop


def _without_credentials(url: str) -> tuple[str, dict[str, str]]:
    """Return a URL without credentials, and headers that carry the credentials."""
    scheme, host, path = split_url(url)
    user, _, machine = host.rpartition("@")
    # The checksum is that of the stored bytes, not of what a server makes of them.
    headers = {"Accept-Encoding": "identity"}
    if user:
        name, _, password = user.partition(":")
        both = b64encode(f"{unquote(name)}:{unquote(password)}".encode()).decode()
        headers["Authorization"] = f"Basic {both}"
    return f"{scheme}://{machine}{path}", headers
