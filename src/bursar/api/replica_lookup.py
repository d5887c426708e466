"""Lookup of a campaign's logical files in a replica catalogue."""

from collections.abc import Mapping, Sequence

from bursar.model.campaign import Campaign
from bursar.model.matching import Brokering
from bursar.model.replica import Replica


def locate_replicas(
    brokering: Brokering | None, campaign: Campaign
) -> Mapping[str, Sequence[Replica]]:
    """
    Return the replicas of all logical files that a campaign's tasks read, by name.

    Raises
    ------
    InputError
        When the catalogue cannot be read.
    """
    if brokering is None or brokering.catalogue is None:
        return {}
    names = {name for task in campaign.workflow.tasks for name in task.data}
    if not names:
        return {}
    from bursar.replicas.catalogue import Catalogue

    # One question for all names; a catalogue that is only read must be there.
    with Catalogue(brokering.catalogue, make=False) as catalogue:
        return catalogue.locate_all(names)
