"""The page's own files as they are served: content, kind, mark, and what a browser may do."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import PurePath
from typing import Any

SHELL = "index.html"
"""File that a browser begins with."""

ACCESS = '{"kind": "local"}'
"""Text in the shell that says where the page's data come from; see :func:`shell`."""

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Headers of every answer: nothing but the page's own files runs, and nothing else is asked."""

_KINDS = {".js": "text/javascript", ".css": "text/css", ".html": "text/html"}


@dataclass(frozen=True, slots=True)
class PageFile:
    """
    One file.

    Parameters
    ----------
    kind
        Media type.
    mark
        Entity tag: another one for other content.
    """

    content: bytes
    kind: str
    mark: str

    @classmethod
    def of(cls, name: str, content: bytes) -> "PageFile":
        """Return a file with kind and mark."""
        mark = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        return cls(content, _KINDS[PurePath(name).suffix], mark)


@cache
def page_files() -> Mapping[str, PageFile]:
    """Return all files of the page by name."""
    folder = files("bursar.page").joinpath("assets")
    return {
        file.name: PageFile.of(file.name, file.read_bytes())
        for file in folder.iterdir()
        if PurePath(file.name).suffix in _KINDS
    }


def shell(access: Mapping[str, Any]) -> str:
    """
    Return the text that a browser begins with.

    Parameters
    ----------
    access
        Where the data come from, and for ``local`` the token.
    """
    # JSON that no HTML parser ends early.
    said = json.dumps(access).replace("<", "\\u003c")
    return page_files()[SHELL].content.decode().replace(ACCESS, said)
