"""A goal changed while the run goes on: asked for in its folder, answered in its journal."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

import msgspec

from bursar.dispatch.journal import is_written, read_journal
from bursar.dispatch.journal_records import RunEvent
from bursar.model.campaign import Goal
from bursar.model.errors import BursarError, InputError
from bursar.model.site import SiteFacts
from bursar.runs.folder import RunFolder, append_durably, record_budget
from bursar.runs.plan_file import read_plan, write_plan

AMENDED = "amended"
"""Kind of the events with answers to amendments."""

SITE_ADDED = "site-added"
"""Kind of the events with answers about sites that were to be added."""

EVERY = 0.2
"""Seconds between two checks for amendments."""

PATIENCE = 10.0
"""Seconds that an answer is waited for."""


class Amendment(msgspec.Struct, frozen=True, kw_only=True):
    """
    Limits that a run is to have from now on.

    Parameters
    ----------
    id
        Identity of the amendment, 16 hex digits.
    deadline
        Seconds from the run's begin; None for none.
    budget
        Currency units; None for none.
    expected_finish, expected_cost
        Expected end and cost of the run, seconds from the begin and currency units; None when
        unknown.
    """

    id: str
    deadline: float | None
    budget: float | None
    expected_finish: float | None = None
    expected_cost: float | None = None

    def of(self, goal: Goal) -> Goal:
        """Return the goal with these limits."""
        return replace(goal, deadline=self.deadline, budget=self.budget)


class SiteAddition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    A site that a run may use from now on.

    Parameters
    ----------
    id
        Identity of the request, 16 hex digits.
    """

    id: str
    site: SiteFacts


class SiteAdditionReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    The running process's answer to a site that was to be added.

    Parameters
    ----------
    site
        Name of the site.
    refused
        Reason why the run does not use it; empty when it does.
    """

    id: str
    site: str
    refused: str = ""


class AmendmentReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    The running process's answer to an amendment.

    Parameters
    ----------
    deadline, budget
        Limits that the run has now.
    refused
        Reason why the limits have not changed; empty when they have.
    expected_finish, expected_cost
        As in the amendment.
    """

    id: str
    deadline: float | None = None
    budget: float | None = None
    refused: str = ""
    expected_finish: float | None = None
    expected_cost: float | None = None


def request_amendment(
    folder: RunFolder, goal: Goal, expected: tuple[float | None, float | None] = (None, None)
) -> AmendmentReply:
    """
    Ask the process that carries a run out for other limits, and wait for the answer.

    Where no process carries the run out, the limits are written into the campaign.

    Parameters
    ----------
    expected
        End and cost that the run is expected to come to under the goal; None when unknown.

    Raises
    ------
    BursarError
        When there is no answer.
    """
    finish, cost = expected
    amendment = Amendment(
        id=secrets.token_hex(8),
        deadline=goal.deadline,
        budget=goal.budget,
        expected_finish=finish,
        expected_cost=cost,
    )
    # Nobody would answer: the next process that carries the run out reads the goal from the
    # campaign.
    if not is_written(folder.journal_file):
        campaign = folder.read_campaign()
        changed = amendment.of(campaign.goal)
        folder.write_campaign(replace(campaign, goal=changed))
        if changed.budget != campaign.goal.budget:
            record_budget(folder, folder.read_info(), changed.budget)
        proposal, plan = read_plan(folder)
        if not plan.purchases:
            write_plan(folder, proposal, replace(plan, makespan=finish, cost=cost))
        return AmendmentReply(id=amendment.id, deadline=goal.deadline, budget=goal.budget)
    answer = _answer(folder, amendment, AMENDED, AmendmentReply, PATIENCE)
    if answer is None:
        raise BursarError(f"run {folder.name} does not answer; its goal may change or not")
    return answer


R = TypeVar("R", AmendmentReply, SiteAdditionReply)


def request_site(folder: RunFolder, facts: SiteFacts) -> SiteAdditionReply:
    """
    Ask the process that carries a run out to use a further site, and wait for the answer.

    Raises
    ------
    InputError
        When no process carries the run out.
    BursarError
        When there is no answer.
    """
    if not is_written(folder.journal_file):
        raise InputError(
            f"no process carries run {folder.name} out",
            hint=f"bursar run --resume {folder.name} --detach goes on with it",
        )
    addition = SiteAddition(id=secrets.token_hex(8), site=facts)
    # A queue may have to be asked first.
    answer = _answer(folder, addition, SITE_ADDED, SiteAdditionReply, 3 * PATIENCE)
    if answer is None:
        raise BursarError(f"run {folder.name} does not answer; it may use {facts.name} or not")
    return answer


def _answer(
    folder: RunFolder,
    request: Amendment | SiteAddition,
    kind: str,
    reply: type[R],
    patience: float,
) -> R | None:
    """Hand a request to the process of a run, and wait for its answer; None: none has come."""
    append_durably(folder.amendments_file, msgspec.json.encode(request) + b"\n")
    until = time.monotonic() + patience
    while time.monotonic() < until:
        time.sleep(EVERY / 2)
        for event in reversed(read_journal(folder.journal_file).events):
            if event.kind == kind:
                answer = msgspec.json.decode(event.text, type=reply)
                if answer.id == request.id:
                    return answer
    return None


async def receive_amendments(
    folder: RunFolder,
    amend: Callable[[Amendment], None],
    add: Callable[[SiteAddition], Awaitable[None]],
) -> None:
    """Carry out amendments, and add sites, that are requested from now on."""
    # Older requests have been answered, or nobody waits for their answer any more.
    seen = _size(folder)
    while True:
        await asyncio.sleep(EVERY)
        size = _size(folder)
        if size <= seen:
            continue
        with folder.amendments_file.open("rb") as file:
            file.seek(seen)
            text = file.read(size - seen)
        # A line without its end is still being written, and is taken the next time.
        whole, _, rest = text.rpartition(b"\n")
        seen = size - len(rest)
        for line in whole.split(b"\n"):
            try:
                amend(msgspec.json.decode(line, type=Amendment))
            except (msgspec.MsgspecError, ValueError):
                # Else not from us: no process waits for an answer.
                with suppress(msgspec.MsgspecError, ValueError):
                    await add(msgspec.json.decode(line, type=SiteAddition))


def expected_after(events: Sequence[RunEvent]) -> tuple[float | None, float | None]:
    """Return the end and cost expected of a run when the goal was last changed."""
    for event in reversed(events):
        if event.kind == AMENDED:
            answer = msgspec.json.decode(event.text, type=AmendmentReply)
            if not answer.refused:
                return answer.expected_finish, answer.expected_cost
    return None, None


def validated_goal(goal: Goal, elapsed: float) -> Goal:
    """
    Return the goal unchanged, if a run of that age can still meet the deadline.

    Raises
    ------
    InputError
        When the deadline has passed.
    """
    if goal.deadline is not None and goal.deadline <= elapsed:
        raise InputError(
            f"{goal.deadline:.6g} s from the begin have passed: the run is {elapsed:.6g} s old",
            where="deadline",
        )
    return goal


def _size(folder: RunFolder) -> int:
    try:
        return folder.amendments_file.stat().st_size
    except OSError:
        return 0
