"""Best effort: each task goes to a queue when those before it have ended (HPDC'07 section 5)."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol

from bursar.broker.pilots import Pilot
from bursar.model.outcome import Outcome, Status
from bursar.model.site import SiteFacts
from bursar.model.workflow import Workflow

Choose = Callable[[int], tuple[SiteFacts, float]]
"""Where a task goes if it is sent now, and seconds to ask for there."""


class Supply(Protocol):
    """Asks for pilots as tasks come to their ends."""

    def begin(self, ended: Iterable[int], before: int = 0) -> list[Pilot]:
        """
        Pilots for what can start at once.

        Parameters
        ----------
        ended
            Tasks that have succeeded already.
        before
            Pilots there were before: names go on from there.
        """

    def ended(self, outcome: Outcome, final: bool) -> list[Pilot]:
        """Pilots for what can start after an attempt."""

    def routed(self, pilot: Pilot) -> Pilot:
        """The pilot with its site: asked when it is sent, since each changes the queues."""

    @property
    def verdict(self) -> str:
        """Why nothing will be asked for any more though tasks are left; empty while more will."""


class JustInTime:
    """
    Asks for one pilot for each task, as soon as the task could start.

    Parameters
    ----------
    workflow
        Of the campaign.
    choose
        Asked where a task goes when it is sent.
    """

    def __init__(self, workflow: Workflow, choose: Choose) -> None:
        self._workflow = workflow
        self._choose = choose
        self._children = workflow.children
        self._missing = [len(parents) for parents in workflow.parents]
        self._sent = 0

    def begin(self, ended: Iterable[int], before: int = 0) -> list[Pilot]:
        """See :class:`Supply`."""
        self._sent = before
        gone = set(ended)
        for task in gone:
            self._release(task)
        return [
            self._pilot(task)
            for task in self._workflow.order
            if not self._missing[task] and task not in gone
        ]

    def ended(self, outcome: Outcome, final: bool) -> list[Pilot]:
        """Pilots for what can start after an attempt."""
        if not final:
            return [self._pilot(outcome.task)]
        if outcome.status is not Status.SUCCEEDED:
            return []
        return [self._pilot(task) for task in self._release(outcome.task)]

    @property
    def verdict(self) -> str:
        """Best effort goes on to the end."""
        return ""

    def _release(self, task: int) -> list[int]:
        ready = []
        for child in self._children[task]:
            self._missing[child] -= 1
            if not self._missing[child]:
                ready.append(child)
        return ready

    def routed(self, pilot: Pilot) -> Pilot:
        """The pilot with its site: to be asked when it is sent, since each changes the queues."""
        (task,) = pilot.tasks
        site, seconds = self._choose(task)
        return replace(
            pilot,
            site=site.name,
            duration=seconds,
            unit_price=site.unit_price,
            fixed_price=site.fixed_price,
        )

    def _pilot(self, task: int) -> Pilot:
        self._sent += 1
        width = self._workflow.tasks[task].processors
        return Pilot(
            name=f"lease-{self._sent}",
            site="",
            processors=width,
            own=width,
            start=None,
            duration=math.inf,
            unit_price=None,
            fixed_price=None,
            tasks=(task,),
        )
