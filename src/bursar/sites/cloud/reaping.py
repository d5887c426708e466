"""Machines of ours that are at clouds, and the end of those that were left."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bursar.model.errors import InputError, SiteError
from bursar.model.site import SiteFacts
from bursar.sites.cloud.libcloud_provider import LibcloudProvider
from bursar.sites.cloud.provider import CloudMachine, CloudProvider, owner_of


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundMachine:
    """
    A machine of ours that has not ended.

    Parameters
    ----------
    site
        Name of the cloud.
    machine
        The machine, by the provider's word.
    is_ended
        Whether it was ended just now.
    error
        Why it could not be ended; empty: it could, or nobody tried.
    """

    site: str
    machine: CloudMachine
    is_ended: bool = False
    error: str = ""


async def find_machines(
    sites: Sequence[SiteFacts],
    is_left: Callable[[str], bool] | None = None,
    *,
    providers: dict[str, CloudProvider] | None = None,
) -> tuple[list[FoundMachine], list[str]]:
    """
    List the machines with our tag at all clouds, and end them if wanted.

    Parameters
    ----------
    sites
        Sites; others than clouds are passed over.
    is_left
        Whether the machines of a run, by its label, are to be ended; None: none are.
    providers
        Clouds by the site's name; None: those that the sites name.

    Returns
    -------
    tuple
        The machines that had not ended, and a line for each cloud that does not answer.
    """
    found: list[FoundMachine] = []
    silent: list[str] = []
    for site in sites:
        if site.cloud is None:
            continue
        try:
            provider = (providers or {}).get(site.name) or LibcloudProvider(site.name, site.cloud)
            machines = await provider.machines(owner_of(site.cloud))
        except (SiteError, InputError) as error:
            silent.append(f"{site.name}: {str(error).splitlines()[0]}")
            continue
        there = [one for one in machines if one.state != "ended"]
        doomed = [one for one in there if is_left is not None and is_left(one.label.run)]
        ending = (provider.destroy(one.id) for one in doomed)
        answers = await asyncio.gather(*ending, return_exceptions=True)
        said = {one.id: answer for one, answer in zip(doomed, answers, strict=True)}
        for one in there:
            answer = said.get(one.id)
            if isinstance(answer, BaseException) and not isinstance(answer, SiteError):
                raise answer
            problem = str(answer) if isinstance(answer, SiteError) else ""
            is_ended = one.id in said and not problem
            found.append(
                FoundMachine(site=site.name, machine=one, is_ended=is_ended, error=problem)
            )
    return found, silent
