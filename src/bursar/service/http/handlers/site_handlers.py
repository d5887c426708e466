"""The service itself: whether it lives, what it offers, how much it does."""

from bursar.service.http.authorized_request import AuthorizedRequest
from bursar.service.http.responses import HttpResponse, json_response

METRICS = "text/plain; version=0.0.4; charset=utf-8"


async def health(call: AuthorizedRequest) -> HttpResponse:
    """Whether it lives."""
    return json_response(call.parts.manager.health())


async def ready(call: AuthorizedRequest) -> HttpResponse:
    """Whether it takes work: 503 when it does not."""
    state = call.parts.manager.ready()
    return json_response(state, 200 if state.status == "ok" else 503)


async def show(call: AuthorizedRequest) -> HttpResponse:
    """Facts and free slots."""
    return json_response(call.parts.manager.site(call.user))


async def metrics(call: AuthorizedRequest) -> HttpResponse:
    """In the text format of Prometheus."""
    return HttpResponse(call.parts.manager.metrics(), kind=METRICS)


async def document(call: AuthorizedRequest) -> HttpResponse:
    """The OpenAPI document."""
    return HttpResponse(call.document)
