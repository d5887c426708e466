"""
Parse the output of ``bjobs``, ``bhosts``, ``bqueues`` and ``bacct``.

``-o ... -json`` prints a list of records; should it be no valid JSON, each record is read for
itself. Times come without a zone, and without a year unless LSB_DISPLAY_YEAR asks for one.
"""

import contextlib
import json
import re
import time
from collections.abc import Mapping
from typing import Any

from bursar.provisioning.lrm.listed_job import ListedJob, unknown_report
from bursar.provisioning.lrm.resource_manager import ClusterNode, JobEnding, JobState
from bursar.provisioning.lrm.time_formats import parse_moment, seconds

Entry = Mapping[str, Any]

JOB_FIELDS = (
    "jobid jobindex stat user queue job_name submit_time start_time finish_time run_time"
    " runtimelimit nreq_slot slots exec_host exit_code exit_reason pend_reason"
    " estimated_start_time"
)
HOST_FIELDS = "host_name status max njobs"

_STATES: Mapping[str, JobState] = {
    "PEND": "pending",
    "PROV": "pending",  # its host is being made ready
    "WAIT": "pending",  # in a chunk, for others of it
    "PSUSP": "held",
    "RUN": "running",
    "USUSP": "running",  # suspended
    "SSUSP": "running",
    "DONE": "ended",
    "EXIT": "ended",
    "ZOMBI": "ended",  # killed while its host was out of reach
}
_TERMS: Mapping[str, JobEnding] = {
    "OWNER": "cancelled",
    "ADMIN": "cancelled",
    "FORCE_OWNER": "cancelled",
    "FORCE_ADMIN": "cancelled",
    "BUCKET_KILL": "cancelled",
    "ORPHAN_SYSTEM": "cancelled",
    "REMOVE_HUNG_JOB": "cancelled",
    "RUNLIMIT": "timeout",
    "DEADLINE": "timeout",
    "PREEMPT": "preempted",
    "LOAD": "preempted",
    "WINDOW": "preempted",
    "REQUEUE_OWNER": "preempted",
    "REQUEUE_ADMIN": "preempted",
    "RC": "preempted",
    "ZOMBIE": "node-fail",
    "SLURM": "node-fail",
    "CWD_NOTEXIST": "rejected",
    "PRE_EXEC_FAIL": "rejected",
    "CSM_ALLOC": "rejected",
}
"""After ``TERM_`` (termination reasons of bacct, bhist and bjobs); others have failed."""

_UP = re.compile(r"ok|closed_(Full|Excl|EGO|RC|cu_excl)", re.IGNORECASE)
_RECORD = re.compile(r"\{[^{}]*\}", re.DOTALL)
_JOBID = re.compile(r'"JOBID"\s*:\s*"(\d+)(?:\[(\d+)\])?"')
_INDEX = re.compile(r'"JOBINDEX"\s*:\s*"(\d+)"')


def parse_records(text: str) -> tuple[list[Entry], list[str]] | None:
    """Parse records and unreadable blocks; None when the text is no list of records."""
    start = text.find("{")  # warnings such as "Cannot connect to LSF. Please wait" may come first
    if start < 0 or '"RECORDS"' not in text:
        return None
    with contextlib.suppress(ValueError):
        whole = json.loads(text[start:], strict=False)
        records = whole.get("RECORDS", [])
        if isinstance(records, list):
            odd = [str(record) for record in records if not isinstance(record, dict)]
            return [record for record in records if isinstance(record, dict)], odd
    # The text as a whole is not valid JSON: each record is read alone, so that one bad record does
    # not hide the others.
    found: list[Entry] = []
    odd = []
    for block in _RECORD.findall(text.partition('"RECORDS"')[2]):
        try:
            found.append(json.loads(block, strict=False))
        except ValueError:
            odd.append(block)
    return found, odd


def id_of(entry: Entry) -> str:
    """``7``, or ``7[2]`` of an array."""
    number = str(entry["JOBID"])
    index = str(entry.get("JOBINDEX", "")).strip()
    return f"{number}[{index}]" if index not in ("", "0", "-") and "[" not in number else number


def id_in(block: str) -> str | None:
    """Find the job id in a record that cannot be parsed."""
    number = _JOBID.search(block)
    if number is None:
        return None
    index = number[2] or (found[1] if (found := _INDEX.search(block)) else "0")
    return number[1] if index == "0" else f"{number[1]}[{index}]"


def read_job(entry: Entry, now: float) -> ListedJob:
    """
    Parse one job.

    Parameters
    ----------
    entry
        Job's record in the listing.
    now
        Seconds since the epoch; by it a time without a year is understood.
    """
    try:
        return _read_job(entry, now)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        id = str(entry.get("JOBID", ""))
        with contextlib.suppress(KeyError):
            id = id_of(entry)
        return unknown_report(id, f"bjobs said of it what cannot be read: {error!r}")


def _read_job(entry: Entry, now: float) -> ListedJob:
    values = {name: _plain(value) for name, value in entry.items()}
    id, letters = id_of(entry), values["STAT"]
    state = _STATES.get(letters, "unknown")
    how: JobEnding | None = None
    reason = values.get("PEND_REASON", "")
    if state == "ended":
        how, reason = _end_of(letters, values.get("EXIT_REASON", ""), values.get("EXIT_CODE", ""))
    elif letters == "UNKWN":
        reason = "its host is out of reach"
    elif state == "unknown":
        reason = f"in a state that is not known: {letters!r}"
    elif letters in ("USUSP", "SSUSP"):
        reason = f"suspended {reason}".strip()
    hosts = values.get("EXEC_HOST", "")
    slots = values.get("SLOTS") or values.get("NREQ_SLOT") or ""
    spent = re.match(r"\d+", values.get("RUN_TIME", ""))
    began = parse_time(values.get("START_TIME", ""), now)
    ended = parse_time(values.get("FINISH_TIME", ""), now)
    return ListedJob(
        id=id,
        state=state,
        how=how,
        reason=reason,
        name=values.get("JOB_NAME", "").partition("[")[0],
        owner=values.get("USER", ""),
        queue=values.get("QUEUE", ""),
        submitted=parse_time(values.get("SUBMIT_TIME", ""), now),
        began=began,
        ended=ended if state == "ended" else None,
        expected=parse_time(values.get("ESTIMATED_START_TIME", ""), now),
        limit=_limit(values.get("RUNTIMELIMIT", "")),
        processors=int(slots.partition(",")[0]) if slots else 1,
        nodes=_hosts(hosts),
        spent=float(spent[0]) if spent and began is not None else None,
    )


def _end_of(letters: str, why: str, code: str) -> tuple[JobEnding, str]:
    if letters == "DONE":
        return "completed", ""
    if letters == "ZOMBI":
        return "node-fail", "killed while its host was out of reach"
    term = re.search(r"TERM_(\w+)", why)
    words = "; ".join(word for word in (why, f"exit code {code}" if code else "") if word)
    return (_TERMS.get(term[1], "failed") if term else "failed"), words


def parse_time(text: str, now: float) -> float | None:
    """
    Parse a time such as ``Dec 28 19:56:30 2026``; seconds, year and a qualifying letter at the end
    are optional.

    One without a year is the last that is no more than some months from now.
    """
    plain = re.sub(r"\s+[A-Z]$", "", text.strip())
    found = parse_moment(plain, "%b %d %H:%M:%S %Y", "%b %d %H:%M %Y")
    if found is not None or not plain or plain == "-":
        return found
    year = time.gmtime(now).tm_year
    for one in (year + 1, year, year - 1):
        found = parse_moment(f"{plain} {one}", "%b %d %H:%M:%S %Y", "%b %d %H:%M %Y")
        if found is not None and found < now + 180 * 86400:
            return found
    return None


def read_host(entry: Entry) -> ClusterNode:
    """
    Parse one host.

    Raises
    ------
    ValueError, KeyError
        When it cannot be read.
    """
    status = _plain(entry["STATUS"])
    slots = int(entry["MAX"])
    taken = min(slots, int(entry["NJOBS"]))
    return ClusterNode(
        name=_plain(entry["HOST_NAME"]),
        processors=slots,
        allocated=slots if status == "closed_Excl" else taken,
        up=_UP.fullmatch(status) is not None,
        state=status,
    )


def parse_queue(text: str) -> tuple[float | None, bool]:
    """Parse ``bqueues -l``: longest time of a job, seconds, and whether jobs are started."""
    maximum = text.partition("MAXIMUM LIMITS")[2] or text
    found = re.search(r"^\s*RUNLIMIT[^\n]*\n\s*([\d.]+)\s*min", maximum, re.MULTILINE)
    status = re.search(r"\b(Open|Closed):(Active|Inact\w*)", text)
    up = status is None or status[2] == "Active"
    return (float(found[1]) * 60 if found else None), up


def parse_accounting(text: str) -> dict[str, tuple[JobEnding, str]]:
    """Parse ``bacct -l``: how jobs ended, and LSF's words for it."""
    ends: dict[str, tuple[JobEnding, str]] = {}
    plain = re.sub(r"\n {10,}", "", text)  # long lines go on, far to the right
    for block in re.split(r"^(?=Job <)", plain, flags=re.MULTILINE):
        head = re.match(r"Job <(\d+(?:\[\d+\])?)>", block)
        done = re.search(r"Completed <(\w+)>(?:;\s*([^\n.]*))?", block)
        if head is None or done is None:
            continue
        why = (done[2] or "").strip()
        ends[head[1]] = _end_of("DONE" if done[1] == "done" else "EXIT", why, "")
    return ends


def _plain(value: object) -> str:
    text = str(value).strip()
    return "" if text == "-" else text


def _limit(text: str) -> float | None:
    """Parse a limit, for example ``1440.0`` (minutes) or ``00:10:00``, into seconds."""
    text = text.partition("/")[0].strip()
    if ":" in text:
        return seconds(text)
    number = re.match(r"[\d.]+", text)
    return float(number[0]) * 60 if number else None


def _hosts(text: str) -> tuple[str, ...]:
    """Parse the host names of a list, for example ``4*n1:n2``."""
    names = (re.sub(r"^\d+\*", "", part) for part in re.split(r"[:\s]+", text))
    return tuple(dict.fromkeys(name for name in names if name))
