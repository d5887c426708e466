"""What real batch schedulers say of their queues now."""

import asyncio
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from bursar.api.loops import outside_loops
from bursar.model.errors import SiteError
from bursar.model.site import SiteFacts
from bursar.model.status import SiteStatus
from bursar.sites.batch import BatchSite

T = TypeVar("T")


def advertised(sites: Sequence[SiteFacts]) -> tuple[SiteFacts, ...]:
    """
    The sites; those with a batch scheduler with the slots that it leaves free.

    All are asked at once. One that does not answer, or has nothing free in sight, is left out.

    Raises
    ------
    SiteError
        When no site is left; with what the schedulers said.
    """
    asked = [site for site in sites if site.batch is not None and site.slots is None]
    said = _ask_all(asked, BatchSite.offers)
    left, silent = [], []
    for site in sites:
        offers = said.get(site.name, site.slots or ())
        if isinstance(offers, SiteError):
            silent.append(str(offers))
        elif site.name in said and not offers:
            silent.append(f"{site.name}: nothing is free in sight")
        else:
            left.append(replace(site, slots=offers) if site.name in said else site)
    if not left:
        raise SiteError("; ".join(silent), transient=True)
    return tuple(left)


def statuses(sites: Sequence[SiteFacts]) -> Mapping[str, SiteStatus | SiteError]:
    """What each site with a batch scheduler says of itself, or why it does not; by name."""
    return _ask_all([site for site in sites if site.batch is not None], BatchSite.status)


def _ask_all(
    sites: Sequence[SiteFacts], what: Callable[[BatchSite], T]
) -> dict[str, T | SiteError]:
    async def ask_all() -> list[T | SiteError]:
        return list(await asyncio.gather(*(_ask(site, what) for site in sites)))

    if not sites:
        return {}
    answers = outside_loops(lambda: asyncio.run(ask_all()))
    return dict(zip((site.name for site in sites), answers, strict=True))


async def _ask(facts: SiteFacts, what: Callable[[BatchSite], T]) -> T | SiteError:
    with tempfile.TemporaryDirectory() as folder:
        site = BatchSite(facts, run="ask", folder=Path(folder))
        try:
            await site.refresh()
            return what(site)
        except SiteError as error:
            return SiteError(f"{facts.name}: {error}", transient=error.transient)
