"""Parse the output of ``qacct`` about jobs that are gone."""

import re
from dataclasses import dataclass

from bursar.provisioning.lrm.resource_manager import JobEnding
from bursar.provisioning.lrm.time_formats import parse_moment, seconds

_RULE = re.compile(r"^={20,}\s*$", re.MULTILINE)
_LIMIT = re.compile(r"\bh_rt=(\S+?)(?=[,\s]|$)")
_CTIME = ("%a %b %d %H:%M:%S %Y", "%m/%d/%Y %H:%M:%S", "%m/%d/%Y %H:%M:%S.%f")

_KILLED = 128 + 9
_ENFORCED = 37
"""``failed``: the queue master enforced a limit (accounting(5))."""

_AFTER = 100
"""``failed``: after the job began; then its exit status tells more."""

_LOST = frozenset({21, 22, 23, 34})
"""``failed``: the host came back without the job, or was not heard of."""

_RESCHEDULED = frozenset({24, 25, 30})
"""``failed``: moved, rescheduled: this was not its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QacctRecord:
    """
    Accounting record of a job that has ended.

    Parameters
    ----------
    number
        Number of the job.
    task
        Number of the array task; None: the job is no array.
    slots
        Number of slots held by the job.
    began, ended
        Seconds since the epoch; None for a job that never began.
    seconds
        Seconds that the job ran.
    limit
        Limit ``h_rt`` of the job, seconds; None if not recorded.
    failed
        Code of Grid Engine's own failure, 0 for none.
    words
        Meaning of that code, in Grid Engine's words.
    status
        Exit status of the job.
    deleted
        User who deleted the job, where the version records this.
    host
        Host on which the job ran.
    """

    number: str
    task: int | None
    slots: int
    began: float | None
    ended: float | None
    seconds: float
    limit: float | None
    failed: int
    words: str
    status: int
    deleted: str = ""
    host: str = ""

    @property
    def how(self) -> JobEnding:
        """
        Ending of the job.

        Grid Engine does not say whether a job was killed by its time limit or by ``qdel``: what
        ran as long as it might is taken for the former, anything else that was killed for the
        latter.
        """
        if self.failed == _ENFORCED:
            return "timeout"
        if self.failed in _LOST:
            return "node-fail"
        if self.failed in _RESCHEDULED:
            return "preempted"
        if self.failed in (0, _AFTER):
            if self.deleted:
                return "cancelled"
            if self.status == _KILLED:
                over = self.limit is not None and self.seconds >= self.limit
                return "timeout" if over else "cancelled"
            return "completed" if self.failed == self.status == 0 else "failed"
        return "rejected"  # something before the job, such as its folder or its shell

    @property
    def reason(self) -> str:
        """Reason of the ending, in Grid Engine's words."""
        if self.failed == 0:
            return "" if self.status == 0 else f"exit status {self.status}"
        by = f", deleted by {self.deleted}" if self.deleted else ""
        return f"failed {self.failed}: {self.words}, exit status {self.status}{by}"


def parse_records(text: str) -> list[QacctRecord]:
    """
    Parse records in order, leaving out unreadable ones.

    A job that was rescheduled has several, the last one last.
    """
    records = []
    for block in _RULE.split(text):
        values: dict[str, str] = {}
        for line in block.splitlines():
            name, _, value = line.strip().partition(" ")
            values.setdefault(name, value.strip())
        if "jobnumber" not in values:
            continue
        try:
            records.append(_record(values))
        except (KeyError, ValueError):
            continue
    return records


def _record(values: dict[str, str]) -> QacctRecord:
    failed, _, words = values["failed"].partition(":")
    began = parse_moment(values.get("start_time", ""), *_CTIME)
    ended = parse_moment(values.get("end_time", ""), *_CTIME)
    wallclock = re.match(r"[\d.]+", values.get("ru_wallclock", ""))
    limit = _LIMIT.search(values.get("category", ""))
    deleted = values.get("deleted_by", "NONE")
    return QacctRecord(
        number=str(int(values["jobnumber"])),
        task=int(values["taskid"]) if values.get("taskid", "").isdigit() else None,
        slots=int(values.get("slots", "1")),
        began=began,
        ended=ended if began is None or ended is None or ended >= began else None,
        seconds=float(wallclock[0]) if wallclock else 0.0,
        limit=seconds(limit[1]) if limit else None,
        failed=int(failed),
        words=words.strip(),
        status=int(re.match(r"\d+", values.get("exit_status", "0"))[0]),  # type: ignore[index]
        deleted="" if deleted in ("NONE", "") else deleted,
        host=values.get("hostname", ""),
    )
