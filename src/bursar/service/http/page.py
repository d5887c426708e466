"""The page of a service at ``/``: its own files, which are no secrets; data come from the API."""

from bursar.page.page_files import HEADERS, PageFile, page_files, shell
from bursar.service.http.http_messages import HttpRequest, HttpResponse, no_such_address
from bursar.service.interfaces import ServiceError

_HEADERS = tuple(item for item in HEADERS.items() if item[0] != "X-Content-Type-Options")
# What every answer of the service has anyway is left out.

PLACE = "/page/"
"""Path below which the page's files lie."""


def is_of_page(request: HttpRequest) -> bool:
    """Return whether a request is for the page or one of its files."""
    return request.path == "/" or request.path.startswith(PLACE)


def page_response(request: HttpRequest) -> HttpResponse:
    """
    Return the page or one of its files.

    Raises
    ------
    ServiceError
        404 when there is no such file.
    """
    if request.path == "/":
        file: PageFile | None = PageFile.of("index.html", shell({"kind": "service"}).encode())
    else:
        file = page_files().get(request.path.removeprefix(PLACE))
    if file is None:
        raise no_such_address()
    if request.method not in ("GET", "HEAD"):
        raise ServiceError("bad-method", 405, "expected GET", allow=["GET"])
    headers = (*_HEADERS, ("ETag", file.mark))
    if request.headers.get("if-none-match") == file.mark:
        return HttpResponse(b"", 304, "", headers)
    return HttpResponse(file.content, 200, f"{file.kind}; charset=utf-8", headers)
