"""Find the sites that may satisfy a job, by what is known before the run starts."""

from bursar.broker.matchmaking.ads import (
    CHANGING_KEYS,
    REQUIREMENTS,
    constant_attributes,
    job_ad,
)
from bursar.broker.matchmaking.broker_interfaces import BrokerJob
from bursar.classad import UNDEFINED, Ad, clauses, evaluate, parse, references
from bursar.model.matching import Matching
from bursar.model.site import SiteFacts


def may_satisfy(site: SiteFacts, matching: Matching) -> bool:
    """
    Whether a site satisfies what a job requires, as far as that does not change.

    A clause that is undefined because it reads what only the site can say at the moment (its
    free processors, its state) does not count against the site.

    Raises
    ------
    InputError
        When the requirements are no expression.
    """
    if matching.requirements is None:
        return True
    requirements = parse(matching.requirements, where=REQUIREMENTS)
    my = job_ad(BrokerJob(number=0, matching=matching), {})
    target = Ad(constant_attributes(site))
    for clause in clauses(requirements):
        value = evaluate(clause, my, target)
        if value is True:
            continue
        if value is UNDEFINED and not references(clause, my).isdisjoint(CHANGING_KEYS):
            continue
        return False
    return True
