"""Notices of a run's end and of trouble: on the desktop, by mail, or to a web hook."""

import getpass
import os
import shutil
import smtplib
import socket
import subprocess
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from email.message import EmailMessage
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from bursar.model.errors import BursarError, InputError
from bursar.report.tables import amount, span

FILE = "notify.json"
"""In the run's folder, readable by its owner only: the address of a web hook may be a secret."""
SMTP = "BURSAR_SMTP"
"""Variable with host and port of the mail server; localhost:25 without."""
PATIENCE = 10.0
"""Seconds that sending may take."""
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def check_target(target: str) -> str:
    """
    Return a target of notices if there is such a way.

    Raises
    ------
    InputError
        When it is none of ``desktop``, ``mailto:ADDRESS`` and a URL, or cannot be used here.
    """
    if target == "desktop":
        if shutil.which("notify-send") is None:
            raise InputError("desktop needs the program notify-send (Debian: libnotify-bin)")
        return target
    parts = urlsplit(target)
    if parts.scheme == "mailto" and "@" in parts.path and not parts.query:
        return target
    if parts.scheme == "https" and parts.hostname:
        return target
    if parts.scheme == "http" and parts.hostname in _LOOPBACK:
        return target
    if parts.scheme == "http":
        raise InputError("a web hook beyond this machine must be https")
    raise InputError(f'expected desktop, mailto:ADDRESS or https://..., got "{target}"')


def keep_targets(run: Path, targets: Sequence[str]) -> None:
    """
    Write the targets of a run's notices into its folder.

    Raises
    ------
    BursarError
        When the file cannot be written.
    """
    path = run / FILE
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(msgspec.json.encode(list(targets)))
    except OSError as error:
        raise BursarError(f"{path}: cannot be written: {error.strerror}") from None


def read_targets(run: Path) -> list[str]:
    """Return the targets of a run's notices; none where there is no file that can be read."""
    try:
        return msgspec.json.decode((run / FILE).read_bytes(), type=list[str])
    except (OSError, msgspec.MsgspecError):
        return []


def shown(target: str) -> str:
    """Return a target without what may be secret."""
    parts = urlsplit(target)
    return f"{parts.scheme}://{parts.hostname}/..." if parts.hostname else target


class RunNotices:
    """
    Sends notices of one run from a thread; what cannot be sent is said in the end.

    Parameters
    ----------
    targets
        As :func:`check_target` returns them.
    """

    def __init__(self, run: str, targets: Sequence[str]) -> None:
        self._run = run
        self._targets = targets
        self._told: set[str] = set()
        self._failures: list[str] = []
        self._thread: ThreadPoolExecutor | None = None

    def trouble(self, kind: str, text: str) -> None:
        """Send a notice of trouble, the first of each kind only, and do not wait for it."""
        if self._targets and kind not in self._told:
            self._told.add(kind)
            self._start(kind, text, {})

    def ended(self, summary: dict[str, Any]) -> list[str]:
        """Send the notice of the run's end or interruption; return what could not be sent."""
        if self._targets:
            self._start("ended", text_of(summary), summary)
        if self._thread is not None:
            self._thread.shutdown()
        return self._failures

    def _start(self, event: str, text: str, summary: dict[str, Any]) -> None:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="notices")
        for target in self._targets:
            self._thread.submit(self._send, target, event, text, summary)

    def _send(self, target: str, event: str, text: str, summary: dict[str, Any]) -> None:
        try:
            send_notice(target, self._run, event, text, summary)
        except (OSError, ValueError, smtplib.SMTPException, subprocess.SubprocessError) as error:
            self._failures.append(f"the notice to {shown(target)} could not be sent: {error}")


def text_of(summary: dict[str, Any]) -> str:
    """Describe how a run stands in one line."""
    parts = [
        f"{summary['state']}: {summary['succeeded']} of {summary['tasks']} tasks succeeded",
        f"{summary['failed']} failed" if summary["failed"] else "",
        span(summary["makespan_s"]),
        amount(summary["cost"], summary["currency"]),
        {True: "deadline met", False: "deadline missed", None: ""}[summary["deadline_met"]],
    ]
    return ", ".join(part for part in parts if part)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Does not send on to another address what was meant for one."""

    def redirect_request(self, *args: Any, **how: Any) -> None:
        """Return no request."""


def send_notice(target: str, run: str, event: str, text: str, summary: dict[str, Any]) -> None:
    """
    Send one notice.

    Raises
    ------
    OSError, ValueError, SMTPException, SubprocessError
        When it cannot be sent.
    """
    title = f"bursar: {run}"
    if target == "desktop":
        subprocess.run(["notify-send", title, text], timeout=PATIENCE, check=True)
    elif target.startswith("mailto:"):
        message = EmailMessage()
        message["From"] = f"{getpass.getuser()}@{socket.gethostname()}"
        message["To"] = target.removeprefix("mailto:")
        message["Subject"] = f"{title} {event}"
        message.set_content(f"{text}\n")
        host, _, port = os.environ.get(SMTP, "localhost").partition(":")
        with smtplib.SMTP(host, int(port or 25), timeout=PATIENCE) as server:
            server.send_message(message)
    else:
        # "text" is what Slack and the like show.
        body = {"text": f"{title}: {text}", "run": run, "event": event, "summary": summary}
        request = urllib.request.Request(
            target, msgspec.json.encode(body), {"Content-Type": "application/json"}, method="POST"
        )
        opener = urllib.request.build_opener(_NoRedirect)
        with opener.open(request, timeout=PATIENCE):
            pass
