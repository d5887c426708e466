"""Handlers for the service as a whole: health, offers, metrics, and what administrators do."""

from msgspec.structs import replace

from bursar.remote import messages as api
from bursar.service.http.authorized_request import AuthorizedRequest
from bursar.service.http.queries import Empty
from bursar.service.http.responses import NO_CONTENT, HttpResponse, json_response

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


async def tokens(call: AuthorizedRequest) -> HttpResponse:
    """Return all valid tokens."""
    return json_response(api.TokenList(tokens=call.parts.tokens.tokens()))


async def create_token(call: AuthorizedRequest, body: api.NewToken) -> HttpResponse:
    """Create a token; only this answer holds its secret."""
    made = call.parts.tokens.create(body)
    await call.parts.journal.durable()
    return json_response(made, 201)


async def revoke_token(call: AuthorizedRequest) -> HttpResponse:
    """Revoke a token."""
    call.parts.tokens.revoke(call.path["token"])
    await call.parts.journal.durable()
    return NO_CONTENT


async def deposit(call: AuthorizedRequest, body: api.Deposit) -> HttpResponse:
    """Add money to a user's account."""
    account = call.parts.billing.deposit(call.path["user"], body)
    await call.parts.journal.durable()
    return json_response(account)


async def overview(call: AuthorizedRequest) -> HttpResponse:
    """Return the state of the whole service."""
    seen = call.parts.engine.overview()
    currency = call.parts.manager.site(call.user).currency
    degraded = call.parts.manager.degraded()
    spent = call.parts.billing.spent()
    return json_response(replace(seen, spent=spent, currency=currency, degraded=degraded))


async def drain(call: AuthorizedRequest, body: Empty) -> HttpResponse:
    """Stop accepting work."""
    call.parts.manager.drain()
    return json_response(call.parts.manager.health(), 202)
