"""Skipping: tasks that come after one that did not succeed end without having run."""

from bursar.engine.task_states import SKIPPED
from bursar.service.engine.instance import Instance
from bursar.service.engine.recording import ResultRecorder, end_without_worker
from bursar.service.interfaces import Clock

_CHUNK = 2048
"""Tasks that are skipped between two records, at most."""

_EDGES = 1 << 16
"""Dependencies that are looked at between two turns of the loop, at most."""


class TaskSkipper:
    """
    Records that tasks do not run, in portions.

    A user decides how many tasks follow a failure: all at once would hold the loop, and take more
    memory and a larger record than there may be. After a crash between two portions the tasks that
    are left are barred when they are restored.
    """

    def __init__(self, recorder: ResultRecorder, clock: Clock) -> None:
        self._recorder = recorder
        self._clock = clock
        self._under_way: set[int] = set()  # numbers of instances

    def skip(self, instance: Instance) -> None:
        """End the tasks of an instance that cannot start any more; the rest follows by itself."""
        if instance.number in self._under_way or instance.destroyed:
            return
        tasks, is_more = instance.tasks.end_some(_CHUNK, _EDGES)
        if not tasks and not is_more:
            return
        self._under_way.add(instance.number)
        instance.tasks.doomed.difference_update(tasks)
        now = self._clock()
        reason = "not run: a task that it comes after did not succeed"
        self._recorder.record(
            [end_without_worker(instance, task, SKIPPED, now, reason) for task in tasks],
            lambda: self._go_on(instance),
        )

    def _go_on(self, instance: Instance) -> None:
        self._under_way.discard(instance.number)
        self.skip(instance)
