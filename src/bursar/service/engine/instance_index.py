"""Index of instances by number, handle and user, with each user's usage and limits."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bursar.service.engine.engine_limits import EngineLimits
from bursar.service.engine.instance import Instance
from bursar.service.interfaces import ServiceError
from bursar.store import Position


@dataclass(slots=True)
class UserUsage:
    """
    A user's current usage of the service, which the limits are compared with.

    Parameters
    ----------
    unfinished, task_bytes
        Number of tasks without a recorded result, and bytes of their bodies, labels
        and dependencies.
    result_bytes
        Bytes of results that were not forgotten.
    """

    instances: int = 0
    unfinished: int = 0
    task_bytes: int = 0
    result_bytes: int = 0


class InstanceIndex:
    """
    All instances, and the checks of users' limits.

    Parameters
    ----------
    limits
        Limits of every user.
    own_limits
        Limits of users who have others, by name.

    Attributes
    ----------
    asked
        Instances that were made with a key, by user and key.
    spent
        Keys whose instances were destroyed, by user and key, the oldest first: when the instance
        was destroyed, and the position of the record.
    """

    def __init__(self, limits: EngineLimits, own_limits: Mapping[str, EngineLimits]) -> None:
        self._limits = limits
        self._own_limits = own_limits
        self.by_number: dict[int, Instance] = {}
        self.asked: dict[tuple[str, str], Instance] = {}
        self.spent: dict[tuple[str, str], tuple[float, Position]] = {}
        self.next_number = 1
        self._by_handle: dict[str, Instance] = {}
        self._by_user: dict[str, dict[int, Instance]] = {}
        self._usage: dict[str, UserUsage] = {}

    def relimit(self, limits: EngineLimits, own_limits: Mapping[str, EngineLimits]) -> None:
        """Change the limits of users from now on; users above a new limit keep what is there."""
        self._limits, self._own_limits = limits, own_limits

    def __iter__(self) -> Iterator[Instance]:
        return iter(self.by_number.values())

    def of(self, user: str) -> list[Instance]:
        """Return the instances of a user, the oldest first."""
        return list(self._by_user.get(user, {}).values())

    def mine(self, user: str, handle: str) -> Instance:
        """
        Return one instance of a user.

        Raises
        ------
        ServiceError
            404, when the user has no such instance, even if another user has.
        """
        instance = self._by_handle.get(handle)
        # The same answer for both: whether another user has such an instance must not show.
        if instance is None or instance.user != user:
            raise ServiceError("not-found", 404, "there is no such instance")
        return instance

    def add(self, instance: Instance) -> None:
        """Add an instance, and count the instance in the user's usage."""
        self.by_number[instance.number] = instance
        self._by_handle[instance.handle] = instance
        self._by_user.setdefault(instance.user, {})[instance.number] = instance
        if instance.key:
            self.asked[instance.user, instance.key] = instance
        usage = self.usage(instance.user)
        usage.instances += 1
        usage.unfinished += instance.tasks.unfinished
        usage.task_bytes += instance.tasks.size
        usage.result_bytes += instance.results.size

    def remove(self, instance: Instance) -> None:
        """Remove an instance, and subtract the instance from the user's usage."""
        user = instance.user
        del self.by_number[instance.number]
        del self._by_handle[instance.handle]
        mine = self._by_user[user]
        del mine[instance.number]
        self.forget_key(instance)
        usage = self.usage(user)
        usage.instances -= 1
        usage.unfinished -= instance.tasks.unfinished
        usage.task_bytes -= instance.tasks.size
        usage.result_bytes -= instance.results.size
        # Users who have nothing any more take no memory.
        if not mine:
            del self._by_user[user], self._usage[user]

    def forget_key(self, instance: Instance) -> None:
        """Stop remembering the key of an instance."""
        # The key may be a newer instance's: it was forgotten when it expired, and used again.
        if instance.key and self.asked.get((instance.user, instance.key)) is instance:
            del self.asked[instance.user, instance.key]

    def usage(self, user: str) -> UserUsage:
        """Return the current usage of a user."""
        return self._usage.setdefault(user, UserUsage())

    def check_key(self, user: str, key: str) -> None:
        """
        Check that a key did not create an instance that was destroyed.

        Raises
        ------
        ServiceError
            409, when it did: the request is a late repetition.
        """
        if (user, key) in self.spent:
            raise ServiceError("gone", 409, "the instance that was made with this key is destroyed")

    def check_instances(self, user: str) -> None:
        """
        Check that a user may have one more instance.

        Raises
        ------
        ServiceError
            403, when not.
        """
        most = self._limits_of(user).instances
        if len(self._by_user.get(user, {})) >= most:
            raise _over("instances", most)

    def check_tasks(self, instance: Instance, count: int, size: int) -> None:
        """
        Check that a user may have so many more tasks, of so many bytes.

        Raises
        ------
        ServiceError
            403 or 429, when not.
        """
        limits, usage = self._limits_of(instance.user), self.usage(instance.user)
        # Counted over the instance's life, as numbers of tasks are never used again.
        if instance.promised + count > limits.tasks:
            raise _over("tasks of one instance", limits.tasks)
        # 413: no wait can help. The two below are 429, since they pass when tasks end.
        if count > limits.unfinished or size > limits.task_bytes:
            raise ServiceError("too-large", 413, "the submission is larger than the user's quota")
        if usage.unfinished + count > limits.unfinished:
            raise _over("unfinished tasks", limits.unfinished, 1.0)
        if usage.task_bytes + size > limits.task_bytes:
            raise _over("bytes of unfinished tasks", limits.task_bytes, 1.0)
        if usage.result_bytes >= limits.result_bytes:
            raise _over("bytes of results that were not forgotten", limits.result_bytes)

    def _limits_of(self, user: str) -> EngineLimits:
        return self._own_limits.get(user, self._limits)


def _over(what: str, most: int, retry_after: float | None = None) -> ServiceError:
    status = 403 if retry_after is None else 429
    return ServiceError(
        "over-quota",
        status,
        f"the user has {most} {what}, the most allowed",
        retry_after=retry_after,
    )
