"""The service itself: whether it lives, what it offers, how much it does."""

from bursar.service.http.call import Call
from bursar.service.http.reply import Reply, said

METRICS = "text/plain; version=0.0.4; charset=utf-8"


async def health(call: Call) -> Reply:
    """Whether it lives."""
    return said(call.parts.manager.health())


async def ready(call: Call) -> Reply:
    """Whether it takes work: 503 when it does not."""
    state = call.parts.manager.ready()
    return said(state, 200 if state.status == "ok" else 503)


async def show(call: Call) -> Reply:
    """Facts and free slots."""
    return said(call.parts.manager.site(call.user))


async def metrics(call: Call) -> Reply:
    """In the text format of Prometheus."""
    return Reply(call.parts.manager.metrics(), kind=METRICS)


async def document(call: Call) -> Reply:
    """The OpenAPI document."""
    return Reply(call.document)
