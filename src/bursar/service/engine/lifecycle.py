"""Creation and destruction of instances, with their homes and keys."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from bursar.engine.task_states import CLAIMED
from bursar.model.money import Refusal
from bursar.remote import messages as api
from bursar.service.billing.pool_admission import PoolAdmission
from bursar.service.engine.content import digest_of_instance
from bursar.service.engine.dispatching import ServiceReactions
from bursar.service.engine.engine_limits import EngineLimits
from bursar.service.engine.instance import Instance
from bursar.service.engine.instance_compaction import InstanceCompaction
from bursar.service.engine.instance_homes import InstanceHomes
from bursar.service.engine.instance_index import InstanceIndex
from bursar.service.engine.recording import ResultRecorder
from bursar.service.engine.records import (
    CREATED,
    DESTROYED,
    MACHINE,
    NUMBERS,
    SPENT,
    InstanceCreated,
    InstanceDestroyed,
    KeySpent,
    NumbersUsed,
)
from bursar.service.engine.restoring import InstanceRestorer
from bursar.service.interfaces import Clock, Entropy, ServiceError
from bursar.store import Position, RecordStore
from bursar.supervisor import TaskSupervisor

_BLOCK = 1024  # numbers of instances that are set aside together
_STOPPING = 30.0  # seconds for which a home waits for the tasks in it to end

_encode = msgspec.msgpack.Encoder().encode


class InstanceLifecycle:
    """Creates instances, and destroys instances on request or after their expiry."""

    def __init__(
        self,
        *,
        index: InstanceIndex,
        journal: RecordStore,
        billing: PoolAdmission,
        homes: InstanceHomes,
        limits: EngineLimits,
        dispatching: ServiceReactions,
        recorder: ResultRecorder,
        upkeep: InstanceCompaction,
        background: TaskSupervisor,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self._index = index
        self._journal = journal
        self._billing = billing
        self._homes = homes
        self._limits = limits
        self._dispatching = dispatching
        self._recorder = recorder
        self._upkeep = upkeep
        self._background = background
        self._clock = clock
        self._entropy = entropy
        # The record that sets instance numbers aside, and the first number beyond them.
        self._numbers: Position | None = None
        self._numbers_below = 1
        # Tasks that make the instances' folders, by instance number; each leaves when it ends.
        self._making: dict[int, asyncio.Task[None]] = {}

    # After a restart.

    def restore(self, restoring: InstanceRestorer) -> None:
        """Take over restored instances, and the keys of destroyed ones."""
        self._numbers, self._numbers_below = restoring.numbers, restoring.below
        self._index.next_number = restoring.below
        # By age: sweep() stops at the first key that is young enough.
        for spent, position in sorted(restoring.spent, key=lambda item: item[0].at):
            self._index.spent[spent.user, spent.key] = spent.at, position
        for instance in restoring.instances(self._pool_of):
            self._index.add(instance)
            self._give_home(instance)

    async def restore_homes(self, restoring: InstanceRestorer) -> None:
        """Make missing homes of instances, and delete homes of destroyed instances."""
        users = {instance.folder: instance.user for instance in self._index}
        dying = [name for name, _ in restoring.homes]
        await run_in_thread(self._homes.restore, users, dying)
        for name, position in restoring.homes:
            self._background.start(self._remove_home(name, position))

    # Making one.

    def make(self, user: str, new: api.NewInstance, key: str) -> Instance:
        """
        Create an instance: on return the record is in the journal, and a thread makes the home.

        Raises
        ------
        ServiceError
            409, when the key made one that was destroyed, or there is no such agreement; 422,
            when it would be kept for too long; 403, when the user has too many; 507, when the
            disk is full.
        """
        # A request that arrives late, after its instance was destroyed, must not make it again.
        self._index.check_key(user, key)
        keep = self._limits.keep if new.keep is None else new.keep
        if keep > self._limits.longest_keep:
            raise ServiceError(
                "bad-value",
                422,
                f"an instance is kept for {self._limits.longest_keep:g} s at the most",
                where="keep",
            )
        pool = self._billing.pool_of(user, new.agreement)
        if isinstance(pool, Refusal):
            raise ServiceError("no-agreement", 409, pool.reason, where="agreement")
        self._index.check_instances(user)
        # No await from the checks to the index: two requests with one key, or at the limit, cannot
        # both pass.
        self._reserve_number()
        created = InstanceCreated(
            number=self._index.next_number,
            handle=self._entropy(16).hex(),
            user=user,
            label=new.label,
            agreement=new.agreement,
            keep=keep,
            created=self._clock(),
            key=key,
            folder=self._entropy(8).hex(),
            # Kept for as long as the key, so that other content under it is noticed after a
            # restart.
            digest=digest_of_instance(new) if key else b"",
            deadline=new.deadline,
            budget=new.budget,
        )
        # Not essential: a full disk refuses new instances while results still find room.
        position = self._journal.append(CREATED, _encode(created), essential=False)
        self._index.next_number += 1
        instance = Instance.of(created, position)
        instance.pool = pool
        self._give_home(instance)
        self._index.add(instance)
        self._making[instance.number] = self._background.start(self._make_home(instance))
        return instance

    async def wait_for_home(self, instance: Instance) -> None:
        """
        Wait until the home of an instance has been made.

        Raises
        ------
        ServiceError
            507, when the home cannot be made: the instance is destroyed then.
        """
        making = self._making.get(instance.number)
        if making is not None:
            # Shielded: a client that hangs up must not stop the folder of an instance that is in
            # the journal.
            await asyncio.shield(making)

    def home_of(self, instance: Instance) -> Path:
        """Return the folder of an instance with ``files``, ``work`` and ``logs``."""
        return self._homes.path(instance.folder)

    def _reserve_number(self) -> None:
        if self._index.next_number < self._numbers_below:
            return
        # Numbers are set aside in blocks: a worker may come back with tasks of an instance of
        # which no record is left, and its number must not be another instance's by then. One
        # record for each number would cost a record for each instance for ever.
        below = self._index.next_number + _BLOCK
        position = self._journal.append(
            NUMBERS, _encode(NumbersUsed(MACHINE, below)), essential=False
        )
        # The new record is appended first; both changes are in one batch.
        if self._numbers is not None:
            self._journal.kill(self._numbers)
        self._numbers, self._numbers_below = position, below

    def _pool_of(self, instance: Instance) -> str:
        pool = self._billing.pool_of(instance.user, instance.agreement)
        # The agreement is over or unknown: its name is a pool without workers, where tasks wait
        # and the instance says why.
        return instance.agreement if isinstance(pool, Refusal) else pool

    def _give_home(self, instance: Instance) -> None:
        instance.home = _encode(str(self.home_of(instance)))

    async def _make_home(self, instance: Instance) -> None:
        try:
            await run_in_thread(self._homes.make, instance.folder, instance.user)
        except OSError as error:
            if not instance.destroyed:
                self._index.forget_key(instance)  # it may be asked for again
                self.destroy(instance)
            raise ServiceError(
                "disk-full", 507, f"its folder cannot be made: {error.strerror}", retry_after=10.0
            ) from None
        finally:
            del self._making[instance.number]

    # The end of one.

    def destroy(self, instance: Instance) -> None:
        """
        Destroy an instance; the destruction is in the journal on return.

        Tasks are killed and the home is removed only when the destruction is durable: otherwise a
        crash would leave an instance without its tasks and files.
        """
        # Before the index forgets that the key was asked for.
        self._spend_key(instance)
        self._index.remove(instance)
        instance.destroyed = True
        self._dispatching.filling.drop(instance)
        # In one batch with the deaths of all the instance's records: after a crash either the
        # instance is there whole, or the folder is known to be rubbish.
        dying = self._journal.append(
            DESTROYED, _encode(InstanceDestroyed(instance.folder)), essential=True
        )
        self._upkeep.destroy(instance)
        making = self._making.get(instance.number)
        self._background.start(self._remove_home(instance.folder, dying, instance, making))
        # Streams and long polls end now; they see that the instance is destroyed.
        instance.wake()

    def sweep(self, now: float) -> None:
        """Destroy expired instances, and forget expired keys."""
        old = now - self._limits.keys
        for key, (at, position) in list(self._index.spent.items()):
            # The oldest come first, so that a sweep costs what it forgets.
            if at >= old:
                break
            del self._index.spent[key]
            self._journal.kill(position)
        for instance in list(self._index):
            expires = instance.expires
            # None while tasks are unfinished: work is never destroyed by time alone.
            if expires is not None and expires <= now:
                self.destroy(instance)
                continue
            if instance.key and instance.created < old:
                self._index.forget_key(instance)
            for name, submission in list(instance.keys.items()):
                if submission.at >= old:
                    break
                self._upkeep.forget_key(instance, name)

    def _spend_key(self, instance: Instance) -> None:
        """Remember for some time that the instance made with a key was destroyed."""
        mine = instance.user, instance.key
        if instance.key and self._index.asked.get(mine) is instance:
            now = self._clock()
            position = self._journal.append(SPENT, _encode(KeySpent(*mine, now)), essential=True)
            self._index.spent[mine] = now, position

    async def _remove_home(
        self,
        name: str,
        dying: Position,
        instance: Instance | None = None,
        making: "asyncio.Task[None] | None" = None,
    ) -> None:
        """Delete the home of a destroyed instance once no task runs there."""
        # A home that is still being made would come into being after its removal.
        if making is not None:
            await asyncio.wait({making})
        if not await self._recorder.durable():
            return  # the next life finds it, or the instance itself
        if instance is not None:
            # Only now: killed before the destruction is durable, tasks would run again after a
            # power cut, cancelled by nobody.
            self._dispatching.stop(instance, None, "its instance was destroyed")
            with contextlib.suppress(TimeoutError):
                # Tasks write into the home until they end; a worker that is away cannot keep it
                # for ever.
                async with asyncio.timeout(_STOPPING):
                    while instance.tasks.counts[CLAIMED]:
                        await instance.changed()
        await run_in_thread(self._homes.remove, name)
        # After the removal: a crash before makes the next life remove the rest.
        self._journal.kill(dying)


async def run_in_thread(call: Callable[..., None], *arguments: object) -> None:
    """Run a blocking function in a thread."""
    await asyncio.get_running_loop().run_in_executor(None, call, *arguments)
