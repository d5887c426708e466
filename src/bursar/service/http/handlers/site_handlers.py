"""Handlers for the service itself: health, readiness, offers and metrics."""

from bursar.service.http.authorized_request import AuthorizedRequest
from bursar.service.http.responses import HttpResponse, json_response

METRICS = "text/plain; version=0.0.4; charset=utf-8"


async def health(call: AuthorizedRequest) -> HttpResponse:
    """Return whether the service responds."""
    return json_response(call.parts.manager.health())


async def ready(call: AuthorizedRequest) -> HttpResponse:
    """Return whether the service accepts work; 503 when it does not."""
    state = call.parts.manager.ready()
    return json_response(state, 200 if state.status == "ok" else 503)


async def show(call: AuthorizedRequest) -> HttpResponse:
    """Return facts and free slots of the site."""
    return json_response(call.parts.manager.site(call.user))


async def metrics(call: AuthorizedRequest) -> HttpResponse:
    """Return the metrics in the text format of Prometheus."""
    return HttpResponse(call.parts.manager.metrics(), kind=METRICS)


async def document(call: AuthorizedRequest) -> HttpResponse:
    """Return the OpenAPI document."""
    return HttpResponse(call.document)
