"""Buys processors of a service at the posted price."""

import secrets
from typing import Any

from bursar.market.agreement import DealTemplate
from bursar.market.trade_messages import (
    Accept,
    AnyMessage,
    Confirm,
    PriceQuote,
    Reject,
    RequestQuote,
)
from bursar.model.errors import InputError
from bursar.model.money import Micros, format_amount
from bursar.remote.async_client import AsyncServiceClient
from bursar.remote.messages import AgreementInfo


async def purchase(
    client: AsyncServiceClient, processors: int, seconds: float, most: Micros | None = None
) -> AgreementInfo:
    """
    Buy processors from now on, or from the time when enough are free.

    Parameters
    ----------
    seconds
        Duration in seconds.
    most
        Greatest total price in micro-units; None: no limit.

    Raises
    ------
    InputError
        When they are dearer, or are not for sale.
    """
    site = await client.site()
    about: dict[str, Any] = {
        "deal": secrets.token_hex(16),
        "sender": (await client.account()).user,
        "to": site.name,
    }
    template = DealTemplate(processors=processors, seconds=seconds, currency=site.currency)
    quote = _only(await client.trade(RequestQuote(**about, number=1, template=template)))
    if not isinstance(quote, PriceQuote):
        raise InputError(_refusal(quote), where=site.name)
    # A quote that is not accepted expires and costs nothing.
    if most is not None and quote.terms.amount > most:
        price = format_amount(quote.terms.amount, site.currency)
        raise InputError(f"they cost {price}, more than may be spent", where=site.name)
    answer = _only(await client.trade(Accept(**about, number=2, of=quote.number)))
    if not isinstance(answer, Confirm):
        raise InputError(_refusal(answer), where=site.name)
    return await client.agreement(answer.agreement.id)


def _only(answers: list[AnyMessage]) -> AnyMessage | None:
    return answers[0] if len(answers) == 1 else None


def _refusal(answer: AnyMessage | None) -> str:
    return answer.reason if isinstance(answer, Reject) else "they are not for sale"
