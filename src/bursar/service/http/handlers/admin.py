"""What administrators do."""

from msgspec.structs import replace

from bursar.remote import messages as api
from bursar.service.http.call import Call
from bursar.service.http.queries import Empty
from bursar.service.http.reply import NOTHING, Reply, said


async def tokens(call: Call) -> Reply:
    """All tokens that are good."""
    return said(api.TokenList(tokens=call.parts.tokens.tokens()))


async def create_token(call: Call, body: api.NewToken) -> Reply:
    """A new one: the only answer that holds its secret."""
    made = call.parts.tokens.create(body)
    await call.parts.journal.durable()
    return said(made, 201)


async def revoke_token(call: Call) -> Reply:
    """It is good no longer."""
    call.parts.tokens.revoke(call.path["token"])
    await call.parts.journal.durable()
    return NOTHING


async def deposit(call: Call, body: api.Deposit) -> Reply:
    """Money for an account."""
    account = call.parts.till.deposit(call.path["user"], body)
    await call.parts.journal.durable()
    return said(account)


async def overview(call: Call) -> Reply:
    """All there is."""
    seen = call.parts.engine.overview()
    currency = call.parts.manager.site(call.user).currency
    degraded = call.parts.manager.degraded()
    spent = call.parts.till.spent()
    return said(replace(seen, spent=spent, currency=currency, degraded=degraded))


async def drain(call: Call, body: Empty) -> Reply:
    """The service begins to take nothing more."""
    call.parts.manager.drain()
    return said(call.parts.manager.health(), 202)
