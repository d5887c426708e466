"""A proxy in front of a real service that puts its own bytes where results of calls were."""

import base64
import http.client
import json
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Lie = Callable[[dict[str, Any]], dict[str, Any]]
"""What becomes of a result's JSON document."""

_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "date"})


class Malicious:
    """Unpickled, this makes a file: a command of the attacker's would run as easily."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._mark,)


def malicious(mark: Path) -> str:
    """A pickle as a result carries it that makes the file when it is loaded."""
    return base64.b64encode(pickle.dumps(Malicious(mark))).decode()


@dataclass
class LyingProxy:
    """
    A running proxy.

    Parameters
    ----------
    port
        Where it listens, on the loopback interface.
    lied
        Labels of the results that were changed.
    """

    port: int
    lied: list[str] = field(default_factory=list)


@contextmanager
def lying_proxy(
    service: int,
    lie: Lie = lambda result: result,
    falsify: Callable[[str, Any], Any] = lambda path, document: document,
) -> Iterator[LyingProxy]:
    """
    Run a proxy that passes everything on and changes each result.

    Parameters
    ----------
    service
        Port of the real service on the loopback interface.
    lie
        What becomes of a result.
    falsify
        What becomes of another JSON document, by the path that was asked for.
    """

    def changed(line: bytes) -> bytes:
        if not line.strip():
            return line
        said = json.loads(line)
        told.lied.append(said["label"])
        return json.dumps(lie(said)).encode() + b"\n"

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Nothing: pytest shows what matters."""

        def _pass_on(self) -> None:
            size = int(self.headers.get("Content-Length", 0))
            body = self.rfile.read(size) if size else None
            onward = http.client.HTTPConnection("127.0.0.1", service)
            try:
                headers = {k: v for k, v in self.headers.items() if k.lower() not in _HOP}
                headers["Host"] = f"127.0.0.1:{service}"
                onward.request(self.command, self.path, body, headers)
                answer = onward.getresponse()
                is_results = self.path.partition("?")[0].endswith("/results")
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in _HOP:
                        self.send_header(name, value)
                if answer.status == 204:
                    self.end_headers()
                    return
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                kind = answer.getheader("Content-Type", "")
                is_lines = "ndjson" in kind
                if kind.startswith("application/json") and not is_results:
                    told_so = falsify(self.path.partition("?")[0], json.loads(answer.read()))
                    piece = json.dumps(told_so).encode()
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                while piece := answer.readline():
                    if is_results and is_lines and self.command == "GET":
                        piece = changed(piece)
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                    self.wfile.flush()
                self.wfile.write(b"0\r\n\r\n")
            except OSError:
                self.close_connection = True
            finally:
                onward.close()

        do_GET = do_POST = do_PUT = do_DELETE = _pass_on  # noqa: N815

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    told = LyingProxy(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield told
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
