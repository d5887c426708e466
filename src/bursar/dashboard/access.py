"""Who may use the dashboard of a process: whoever knows its token."""

import hmac
import os
import secrets
from collections.abc import Collection
from pathlib import Path

OPENING = """<!doctype html>
<meta charset="utf-8">
<title>Bursar</title>
<form method="post" action="{address}open"><input type="hidden" name="code" value="{code}">
<p>The page of your runs opens by itself. If nothing happens: <button>open the page</button></p>
</form>
<script>document.forms[0].submit()</script>
"""
"""File that the browser is opened with: the code reaches no address, history or process list."""

_CODE = 8  # letters of a code that is typed
_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"  # none that looks like another one
_MOST_FAILURES = 20


class PageAccess:
    """
    Knows the token, and gives it for a code that works once.

    Parameters
    ----------
    token
        The token; None: a new one that ends with the process.
    """

    def __init__(self, token: str | None = None) -> None:
        self._token = token or secrets.token_urlsafe(32)
        self._codes: set[str] = set()
        self._failures = 0

    @property
    def token(self) -> str:
        """The token."""
        return self._token

    def new_code(self) -> str:
        """Return a code for :meth:`redeem`."""
        code = "".join(secrets.choice(_LETTERS) for _ in range(_CODE))
        self._codes.add(code)
        return code

    def redeem(self, code: str) -> str | None:
        """
        Return the token for a code, which is then void; None: the code is none.

        After many wrong codes none is taken any more, as a code is short.
        """
        said = code.strip().lower()
        found = next((one for one in self._codes if _equal(one, said)), None)
        if found is None or self._failures >= _MOST_FAILURES:
            self._failures += 1
            return None
        self._codes.discard(found)
        return self._token

    def is_valid(self, authorization: str) -> bool:
        """Return whether an ``Authorization`` header has the token."""
        kind, _, token = authorization.partition(" ")
        return kind.lower() == "bearer" and _equal(token.strip(), self._token)


def write_opening(path: Path, address: str, code: str) -> None:
    """Write the file that opens the page, which nobody else can read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(OPENING.format(address=address, code=code))


def is_own_host(host: str, allowed: Collection[str]) -> bool:
    """
    Return whether a ``Host`` header names this server.

    A foreign page can give its own name our address and then talk to us as its own server (DNS
    rebinding); the header has that name.
    """
    return host.lower() in allowed


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())
