"""
Build the ClassAds that describe sites and jobs, and find the sites that may satisfy a job.

Each attribute has a plain name, and the names it went by in the European DataGrid of 2001 and
in the GLUE schema of its successors, so that requirements and ranks written for these hold.
What is not known is not there, so that it is undefined: never 0.
"""

from collections.abc import Mapping
from typing import Any

from bursar.broker.matchmaking.broker_interfaces import BrokerJob
from bursar.classad import UNDEFINED, Ad, clauses, evaluate, parse, references
from bursar.classad.operators import lower
from bursar.model.matching import Fact, Matching, SiteStatus
from bursar.model.site import SiteFacts

# Build the ClassAds that describe sites and jobs.

MEGABYTE = 2**20
"""Bytes; memory is so counted in the GLUE schema."""

CONSTANT = {
    "Name": ("CEId", "GlueCEUniqueID"),
    "Kind": (),
    "Processors": ("TotalCPUs", "GlueCEInfoTotalCPUs"),
    "Memory": (),
    "Speed": (),
    "UnitPrice": (),
    "Currency": (),
}
"""Names of a site's constant attributes, each with its synonyms."""

CHANGING = {
    "State": ("Status", "GlueCEStateStatus"),
    "FreeProcessors": ("FreeCPUs", "GlueCEStateFreeCPUs"),
    "Running": ("RunningJobs", "GlueCEStateRunningJobs"),
    "Waiting": ("IdleJobs", "WaitingJobs", "GlueCEStateWaitingJobs"),
    "EstimatedTraversalTime": ("GlueCEStateEstimatedResponseTime",),
    "FreeMemory": (),
}
"""Names of a site's changing attributes, each with its synonyms."""

MEMORY_IN_MEGABYTES = ("GlueHostMainMemoryRAMSize",)
FREE_MEMORY_IN_MEGABYTES = ("GlueHostMainMemoryRAMAvailable",)

CHANGING_KEYS = frozenset(
    lower(name) for plain, others in CHANGING.items() for name in (plain, *others)
) | {lower(name) for name in FREE_MEMORY_IN_MEGABYTES}
"""All names of what changes, in lower case."""

TWINS = (
    ("OpSys", "GlueHostOperatingSystemName"),
    ("Arch", "GlueHostArchitecturePlatformType"),
)
"""Pairs of names of one fact; a site that states one name has both."""

REQUIREMENTS = "requirements"
"""Attribute that says which jobs a site takes."""

JOB_ATTRIBUTES = frozenset({"processors", "cpunumber", "memory", "runtime", "inputdata"})
"""Attributes, in lower case, that :func:`job_ad` derives from the job's own description."""

OF_QUEUE = frozenset(
    lower(name)
    for plain in ("FreeProcessors", "Running", "Waiting", "EstimatedTraversalTime")
    for name in (plain, *CHANGING[plain])
)
"""Attributes of a site that our own jobs will change when they reach the site's queue."""

Attributes = dict[str, Any]
"""Values by name in lower case."""


def constant_attributes(site: SiteFacts) -> Attributes:
    """
    Return the attributes of a site that do not change.

    Attributes set by the site stand in for alternative names of facts, never for the plain ones.
    Requirements are left out, since they are an expression.
    """
    own = {lower(name): value for name, value in site.attributes.items()}
    own.pop(REQUIREMENTS, None)
    for one, other in TWINS:
        for given, lacking in ((lower(one), lower(other)), (lower(other), lower(one))):
            if given in own:
                own.setdefault(lacking, own[given])
    values: dict[str, Fact | None] = {
        "Name": site.name,
        "Kind": site.kind,
        "Processors": site.processors,
        "Memory": site.memory,
        "Speed": site.speed,
        "UnitPrice": site.unit_price,
        "Currency": site.currency,
    }
    plain = {lower(name): value for name, value in values.items() if value is not None}
    return _named(values) | _megabytes(MEMORY_IN_MEGABYTES, site.memory) | own | plain


def changing_attributes(status: SiteStatus) -> Attributes:
    """Attributes from a site's status."""
    wait = status.traversal_time
    values: dict[str, Fact | None] = {
        "State": status.state,
        "FreeProcessors": status.free_processors,
        "Running": status.running,
        "Waiting": status.waiting,
        "EstimatedTraversalTime": wait if is_wait(wait) else None,
        "FreeMemory": status.free_memory,
    }
    found = {lower(name): value for name, value in status.attributes.items()}
    found |= _named(values)
    return found | _megabytes(FREE_MEMORY_IN_MEGABYTES, status.free_memory)


def is_wait(wait: object) -> bool:
    """Whether an estimated traversal time can be one: a number, and not below 0."""
    return isinstance(wait, int | float) and not isinstance(wait, bool) and wait >= 0


def job_ad(job: BrokerJob, attributes: Mapping[str, Fact]) -> Ad:
    """
    Return the ClassAd of a job.

    Parameters
    ----------
    attributes
        Attributes of all jobs of the broker, such as the owner; a job's own take precedence.

    Raises
    ------
    InputError
        Where an attribute is no expression.
    """
    found: dict[str, object] = dict(attributes)
    for name, value in (
        ("Processors", job.processors),
        ("CpuNumber", job.processors),
        ("Memory", job.memory),
        ("Runtime", job.runtime),
        ("InputData", list(job.data) or None),
    ):
        if value is not None:
            found[name] = value
    for name, text in job.matching.attributes.items():
        found[name] = parse(text, where=f"attributes.{name}")
    return Ad(found)


def _named(values: Mapping[str, Fact | None]) -> Attributes:
    """Return each known value under every synonym of its name."""
    return {
        key: value for plain, value in values.items() if value is not None for key in _KEYS[plain]
    }


def _megabytes(names: tuple[str, ...], size: int | None) -> Attributes:
    return {} if size is None else {lower(name): size // MEGABYTE for name in names}


_KEYS = {
    plain: tuple(lower(name) for name in (plain, *others))
    for plain, others in (CONSTANT | CHANGING).items()
}


# Find the sites that may satisfy a job, by what is known before the run starts.


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
