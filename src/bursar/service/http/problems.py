"""Errors as problem documents (RFC 9457)."""

import re
from collections.abc import Callable
from http import HTTPStatus
from typing import TypeVar

import msgspec

from bursar.remote.messages import Problem
from bursar.service.http.responses import Headers, HttpResponse, encode_json
from bursar.service.interfaces import ServiceError

T = TypeVar("T")

PROBLEM = "application/problem+json"

_PLACE = re.compile(r" - at `(?:key in )?\$?\.?(.*)`$", re.DOTALL)
_LONGEST = 500  # characters of what is said of one case


def problem_response(error: ServiceError) -> HttpResponse:
    """Return the response with an error's problem document."""
    problem = Problem(
        type=f"/problems/{error.kind}",
        title=error.kind.replace("-", " ").capitalize(),
        status=error.status,
        detail=_line(error.detail),
        where=_line(error.where),
        retry_after=error.retry_after,
    )
    headers: Headers = ()
    if error.allow:
        headers += (("allow", ", ".join(error.allow)),)
    # Whole seconds, rounded up: a client that comes a moment too early is refused again.
    if error.retry_after is not None:
        headers += (("retry-after", str(max(1, round(error.retry_after + 0.5)))),)
    # Every 401 must name a scheme (RFC 9110, section 15.5.2).
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers += (("www-authenticate", "Bearer"),)
    return HttpResponse(encode_json(problem), error.status, PROBLEM, headers)


def incident_response(incident: str) -> HttpResponse:
    """Return the response to an internal error, which tells only the incident's name in the log."""
    detail = f"the service failed; its log knows this as incident {incident}"
    return problem_response(ServiceError("internal", 500, detail))


def decoded(decode: Callable[[bytes], T], data: bytes, *, within: str = "") -> T:
    """
    Decode a body with a decoder of msgspec.

    Parameters
    ----------
    within
        Name of the decoded part; empty: the whole body.

    Raises
    ------
    ServiceError
        400 when the body cannot be read, 422 when a value in it is wrong.
    """
    try:
        return decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        status = 422 if isinstance(error, msgspec.ValidationError) else 400
        raise decoding_problem(error, status, within=within) from None


def decoding_problem(error: Exception, status: int, *, within: str = "") -> ServiceError:
    """Convert an error of a decoder into a service error that names the field."""
    text = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
    place = _PLACE.search(text)
    where = place[1] if place else ""
    detail = text[: place.start()] if place else text
    joint = "." if within and where and not where.startswith("[") else ""
    return ServiceError("bad-value", status, detail, where=f"{within}{joint}{where}")


def _line(text: str) -> str:
    """Return one printable line of limited length."""
    shown = "".join(c if c.isprintable() else "?" for c in text[: _LONGEST + 1])
    return shown if len(shown) <= _LONGEST else shown[: _LONGEST - 3] + "..."
