"""The account of a book that pays for a campaign."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bursar.model.campaign import Campaign
from bursar.model.errors import InputError
from bursar.model.money import Payer, from_micros
from bursar.model.site import SiteFacts
from bursar.runs.payments import allowance_of

BOOK = Path("bursar.book")
"""File of the book, unless another is named."""


def payer_of(campaign: Campaign, account: str | None, book: str | Path | None) -> Payer | None:
    """Return the account that pays: the caller's, else the campaign's; None: no account."""
    account = campaign.account if account is None else account
    if account is None:
        return None
    file = Path(book) if book is not None else campaign.book or BOOK
    return Payer(account=account, book=str(file.absolute()), budget=campaign.goal.budget)


def within_account(campaign: Campaign, facts: Sequence[SiteFacts], payer: Payer) -> Campaign:
    """Return the campaign with the lesser of the budget and the account's remaining amount."""
    allowance = allowance_of(payer)
    for site in facts:
        if site.currency != allowance.currency:
            raise InputError(
                f"the book is in {allowance.currency}, site {site.name} counts in {site.currency}",
                where="--account",
            )
        if site.unit_price is None and site.slots is None and site.remote is None:
            raise InputError(
                f"site {site.name} has no price, so what runs there cannot be charged",
                where="--account",
            )
    # Looked up without a lock: what really is set aside is decided by RunPayments when the run
    # begins.
    left = from_micros(allowance.amount)
    stated = campaign.goal.budget
    budget = left if stated is None else min(left, stated)
    return replace(campaign, goal=replace(campaign.goal, budget=budget))
