"""Forecast when the campaign will end at the present pace."""

from bursar.model.plan import Plan
from bursar.model.task import Outcome, Status
from bursar.model.workflow import Workflow


class Forecast:
    """
    Predicts the end from what is left and how long tasks have really taken.

    What is left is counted in processor-seconds by the tasks' estimates, scaled
    by how far the estimates have been off so far; a task without an estimate
    counts as the mean of those that have ended. The plan says how much of the
    processors' time the order of the tasks lets be used.

    Each outcome is taken in once, at a constant cost.

    Parameters
    ----------
    workflow
        Workflow of the campaign.
    plan
        Plan that the run follows.
    """

    def __init__(self, workflow: Workflow, plan: Plan) -> None:
        self._tasks = tasks = workflow.tasks
        self._children = workflow.children
        self._plan = plan
        self._known_left = sum((t.runtime or 0.0) * t.processors for t in tasks)
        self._left_unknown = sum(t.processors for t in tasks if t.runtime is None)
        self._estimated = 0.0
        self._actual = 0.0
        self._unknown_actual = 0.0
        self._unknown_width = 0
        self._left = len(tasks)
        self._ended = bytearray(len(tasks))

    def learn(self, outcome: Outcome, final: bool) -> None:
        """Record the end of an attempt; skip the successors of a task that finally failed."""
        if not final:
            return
        self._drop(outcome.task)
        task = self._tasks[outcome.task]
        if outcome.status is not Status.SUCCEEDED:
            skipped = list(self._children[outcome.task])
            while skipped:
                child = skipped.pop()
                if not self._ended[child]:
                    self._drop(child)
                    skipped.extend(self._children[child])
            return
        seconds = (outcome.end - outcome.start) * task.processors
        if task.runtime is None:
            self._unknown_actual += seconds
            self._unknown_width += task.processors
        elif task.runtime > 0:
            self._estimated += task.runtime * task.processors
            self._actual += seconds

    def _drop(self, number: int) -> None:
        """Take a task that will not run any more out of what is left."""
        if self._ended[number]:
            return
        self._ended[number] = True
        self._left -= 1
        task = self._tasks[number]
        if task.runtime is None:
            self._left_unknown -= task.processors
        else:
            self._known_left -= task.runtime * task.processors

    def follow(self, plan: Plan) -> None:
        """Follow another plan for what is left."""
        self._plan = plan

    @property
    def stretch(self) -> float:
        """Seconds taken for each second estimated; 1 before anything is known."""
        return self._actual / self._estimated if self._estimated > 0 else 1.0

    def left(self) -> float | None:
        """Processor-seconds still to do; None when nothing is known of some task."""
        left = max(0.0, self._known_left) * self.stretch
        if self._left_unknown > 0:
            if not self._unknown_width:
                return None
            # Tasks without an estimate are taken to last as long as such tasks did so far.
            left += self._left_unknown * self._unknown_actual / self._unknown_width
        return left

    def finish(self, elapsed: float, held: int = 0) -> float | None:
        """
        Return when the last task will end, seconds from the begin; None when unknown.

        Parameters
        ----------
        elapsed
            Seconds since the begin.
        held
            Processors that are held now, for where the plan bought none.
        """
        if self._left <= 0:
            return elapsed
        left = self.left()
        if left is None:
            return None
        processors = max(1, self._plan.processors or held)
        used = self._plan.utilisation or 1.0
        return elapsed + left / (processors * used)
