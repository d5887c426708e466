"""Notices of a run's end and of trouble reach those who asked for them."""

import http.server
import json
import os
import socketserver
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CAMPAIGN = """\
[tasks.good]
command = "true"
[tasks.bad]
command = "exit 3"
[retry]
attempts = 1
"""


@pytest.fixture
def hook() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A web hook on this machine: its URL, and what it was sent."""
    heard: list[dict[str, Any]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200 if "refuse" not in self.path else 500)
            self.end_headers()

        def log_message(self, *words: Any) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/secret-4711", heard
        server.shutdown()


def test_a_web_hook_hears_of_the_first_failure_and_of_the_end(
    folder: Any, hook: tuple[str, list[dict[str, Any]]]
) -> None:
    """The address stays out of everything that others may read."""
    url, heard = hook
    folder.write("c.toml", CAMPAIGN)
    folder.bursar("run", "c.toml", "--notify", url, status=1)

    assert [one["event"] for one in heard] == ["failure", "ended"]
    assert "bad failed" in heard[0]["text"]
    assert "1 of 2 tasks succeeded, 1 failed" in heard[1]["text"]
    assert heard[1]["run"] == folder.run.name
    assert heard[1]["summary"]["failed"] == 1
    for path in folder.run.rglob("*"):
        if path.is_file() and b"secret-4711" in path.read_bytes():
            assert path.name == "notify.json"
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
    # A resumed run still knows whom to tell.
    folder.bursar("retry", "last", status=1)
    assert [one["event"] for one in heard[2:]] == ["failure", "ended"]


def test_a_notice_that_cannot_be_sent_is_said_and_changes_nothing(
    folder: Any, hook: tuple[str, list[dict[str, Any]]]
) -> None:
    url, _ = hook
    folder.write("c.toml", '[tasks.a]\ncommand = "true"\n')
    told = folder.bursar("run", "c.toml", "--notify", f"{url}/refuse").stderr

    assert "the notice to http://127.0.0.1/... could not be sent: HTTP Error 500" in told
    assert "secret-4711" not in told


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("http://example.org/x", "must be https"),
        ("carrier-pigeon", "expected desktop, mailto:ADDRESS or https://"),
        ("mailto:nobody", "expected desktop"),
    ],
)
def test_a_wrong_target_is_refused_before_anything_runs(
    folder: Any, target: str, said: str
) -> None:
    folder.write("c.toml", CAMPAIGN)
    told = folder.bursar("run", "c.toml", "--notify", target, status=2).stderr

    assert told.startswith("bursar: --notify: ")
    assert said in told
    assert not list(folder.path.glob("runs/*"))


class MailServer(socketserver.StreamRequestHandler):
    """Takes one mail, as much of SMTP as that needs."""

    mails: list[str]

    def handle(self) -> None:
        """Answer each line, and keep what comes after DATA."""
        self.wfile.write(b"220 here\r\n")
        for line in self.rfile:
            if line.upper().startswith(b"DATA"):
                self.wfile.write(b"354 go on\r\n")
                mail = b""
                while (part := self.rfile.readline()) != b".\r\n":
                    mail += part
                self.mails.append(mail.decode())
            if line.upper().startswith(b"QUIT"):
                self.wfile.write(b"221 bye\r\n")
                return
            self.wfile.write(b"250 ok\r\n")


def test_a_mail_is_sent_and_the_desktop_is_told(folder: Any, tmp_path: Path) -> None:
    """By the mail server that is named, and by notify-send."""
    programs = tmp_path / "programs"
    programs.mkdir()
    said = tmp_path / "said"
    (programs / "notify-send").write_text(f'#!/bin/sh\necho "$@" >> {said}\n')
    (programs / "notify-send").chmod(0o755)
    MailServer.mails = []
    with socketserver.TCPServer(("127.0.0.1", 0), MailServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        env = os.environ | {
            "BURSAR_SMTP": f"127.0.0.1:{server.server_address[1]}",
            "PATH": f"{programs}:{os.environ['PATH']}",
            "BURSAR_NOTIFY": "desktop mailto:ada@example.org",
        }
        folder.write("c.toml", '[tasks.a]\ncommand = "true"\n')
        folder.bursar("run", "c.toml", env=env)
        server.shutdown()

    (mail,) = MailServer.mails
    assert "To: ada@example.org" in mail
    assert "1 of 1 tasks succeeded" in mail
    assert "1 of 1 tasks succeeded" in said.read_text()
