"""Handlers for the service as a whole: health, offers, metrics, and what administrators do."""

from msgspec.structs import replace

from bursar.remote import messages as api
from bursar.remote.admin_messages import NewToken, Overview, TokenInfo, TokenList
from bursar.service.http.authorized_request import AuthorizedRequest
from bursar.service.http.queries import Empty
from bursar.service.http.responses import HttpResponse, json_response

METRICS = "text/plain; version=0.0.4; charset=utf-8"


async def health(call: AuthorizedRequest) -> api.Health:
    """Return whether the service responds."""
    return call.service.manager.health()


async def ready(call: AuthorizedRequest) -> HttpResponse:
    """Return whether the service accepts work; 503 when it does not."""
    state = call.service.manager.ready()
    return json_response(state, 200 if state.status == "ok" else 503)


async def show(call: AuthorizedRequest) -> api.SiteInfo:
    """Return facts and free slots of the site."""
    return call.service.manager.site(call.user)


async def metrics(call: AuthorizedRequest) -> HttpResponse:
    """Return the metrics in the text format of Prometheus."""
    return HttpResponse(call.service.manager.metrics(), kind=METRICS)


async def document(call: AuthorizedRequest) -> HttpResponse:
    """Return the OpenAPI document."""
    return HttpResponse(call.document)


async def tokens(call: AuthorizedRequest) -> TokenList:
    """Return all valid tokens."""
    return TokenList(tokens=call.service.tokens.tokens())


async def create_token(call: AuthorizedRequest, body: NewToken) -> TokenInfo:
    """Create a token; only this answer holds its secret."""
    made = call.service.tokens.create(body)
    await call.service.journal.durable()
    return made


async def revoke_token(call: AuthorizedRequest) -> None:
    """Revoke a token."""
    call.service.tokens.revoke(call.path["token"])
    await call.service.journal.durable()


async def deposit(call: AuthorizedRequest, body: api.Deposit) -> api.AccountInfo:
    """Add money to a user's account."""
    account = call.service.billing.deposit(call.path["user"], body)
    await call.service.journal.durable()
    return account


async def overview(call: AuthorizedRequest) -> Overview:
    """Return the state of the whole service."""
    seen = call.service.engine.overview()
    currency = call.service.manager.site(call.user).currency
    degraded = call.service.manager.degraded()
    spent = call.service.billing.spent()
    return replace(seen, spent=spent, currency=currency, degraded=degraded)


async def drain(call: AuthorizedRequest, body: Empty) -> api.Health:
    """Stop accepting work."""
    call.service.manager.drain()
    return call.service.manager.health()
