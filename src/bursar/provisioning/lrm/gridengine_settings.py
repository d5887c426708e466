"""Parallel environments of Grid Engine, and its known errors with hints on what to change."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from bursar.model.errors import SiteError
from bursar.provisioning.lrm.command_runner import KnownComplaint
from bursar.provisioning.lrm.resource_manager import JobRequest

# Parallel environments: how Grid Engine is asked for several slots.

_PE = re.compile(r"-pe\s+(\S+)\s*$")


@dataclass(frozen=True, slots=True)
class ParallelEnvironment:
    """
    A parallel environment of Grid Engine.

    Parameters
    ----------
    rule
        Its ``allocation_rule``: ``$pe_slots``, ``$fill_up``, ``$round_robin`` or a number of slots
        on each host.
    """

    name: str
    rule: str


def parse_environment(text: str) -> ParallelEnvironment | None:
    """Parse the output of ``qconf -sp``."""
    values = dict(line.split(None, 1) for line in text.splitlines() if len(line.split(None, 1)) > 1)
    if "pe_name" not in values or "allocation_rule" not in values:
        return None
    return ParallelEnvironment(values["pe_name"].strip(), values["allocation_rule"].strip())


def named(directives: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """
    The environment that a site's directives name by ``-pe NAME``, and the other directives.

    How many slots are wanted differs from request to request, so a site names it without.
    """
    names = [found[1] for line in directives if (found := _PE.fullmatch(line.strip()))]
    others = tuple(line for line in directives if not _PE.fullmatch(line.strip()))
    return (names[-1] if names else None), others


def needs_environment(request: JobRequest) -> bool:
    """Whether one slot of one host is not enough."""
    return request.processors > 1 or (request.nodes is not None and request.nodes != (1, 1))


def slots(request: JobRequest) -> str:
    """Slots in the form that ``-pe`` takes: a number or a range."""
    fewest, most = request.nodes or (1, 1)
    low, high = fewest * request.processors, most * request.processors
    return str(low) if low == high else f"{low}-{high}"


def choose(environments: Sequence[ParallelEnvironment], request: JobRequest) -> ParallelEnvironment:
    """
    Choose the environment that spreads a request's slots as requested.

    Raises
    ------
    SiteError
        When there is none.
    """
    per_host = str(request.processors)
    several = request.nodes is not None and request.nodes != (1, 1)
    if several:
        rules: tuple[str, ...] = (per_host,)
    elif request.together or request.nodes is not None:
        rules = ("$pe_slots", per_host)
    else:
        rules = ("$fill_up", "$pe_slots", "$round_robin")
    for rule in rules:
        for environment in environments:
            if environment.rule == rule:
                return environment
    there = ", ".join(f"{e.name} ({e.rule})" for e in environments) or "none"
    raise SiteError(
        f"no parallel environment of Grid Engine gives {slots(request)} slots with"
        f" allocation_rule {' or '.join(rules)}; there are: {there}; name one by a directive"
        ' "-pe NAME"'
    )


# Known error messages of Grid Engine, with hints on what to change.

UNREACHABLE = (
    r"unable to (send message|contact|initialize environment because of error: commlib)"
    r"|got select error|commlib error|can't connect|cannot connect|failed receiving gdi"
    r"|got (send|read) error|timeout|answer list from qmaster"
)

COMPLAINTS = (
    KnownComplaint(
        r"SGE_ROOT directory|set the environment variable SGE_ROOT|cell directory",
        'set SGE_ROOT and SGE_CELL in the site\'s "environment"',
    ),
    KnownComplaint(UNREACHABLE, "the queue master does not answer", transient=True),
    KnownComplaint(r"unknown queue", 'name one that "qconf -sql" lists as "queue"'),
    KnownComplaint(
        r"project", '"account" names a project that you may charge ("qconf -sprjl" lists them)'
    ),
    KnownComplaint(
        r"parallel environment",
        'name one that "qconf -spl" lists by a directive "-pe NAME"',
    ),
    KnownComplaint(
        r"no suitable queues",
        "no queue could ever run it: ask for less time or fewer processors, or name another queue",
    ),
    KnownComplaint(
        r'in userset "arusers"|must be (manager|operator)',
        "reservations are for members of arusers here; pilots with a begin time are used instead",
    ),
    KnownComplaint(
        r"no suitable resources|not enough .*slots", "ask for fewer, or for another time"
    ),
    KnownComplaint(
        r"only \d+ jobs? (are|is) allowed|job .*limit|jobs? .*per user",
        'your share of jobs is used up: lower "max_pending"',
    ),
    KnownComplaint(
        r"no permission|permission denied|not allowed|denied: (host|user)|no submit host",
        "ask the administrators for access from this host",
    ),
    KnownComplaint(
        r"unknown resource|invalid option|invalid argument|not a (time|valid)",
        'look at the site\'s "directives"',
    ),
)
"""Error messages of Son of Grid Engine 8.1.9; the first match counts."""
