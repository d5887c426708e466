"""
PBS adapter, for OpenPBS and Torque: not run live, tested on recorded outputs.

Both are read into the same tables, attribute by attribute. OpenPBS does not always print valid
JSON (a name of digits comes without quotes): then each entry is read for itself.
"""

import contextlib
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from bursar.model.errors import SiteError
from bursar.model.provisioning import BatchScheduler
from bursar.provisioning.lrm.command_adapter import (
    CommandAdapter,
    Entry,
    ListedJob,
    expand_numbers,
    format_walltime,
    parse_moment,
    read_or_unknown,
    seconds,
    table_in,
    unknown_report,
)
from bursar.provisioning.lrm.command_runner import (
    CommandRunner,
    KnownComplaint,
    unreadable_output_error,
)
from bursar.provisioning.lrm.resource_manager import (
    ClusterNode,
    JobEnding,
    JobRequest,
    JobState,
    ManagerCapabilities,
    QueueState,
)
from bursar.provisioning.lrm.submission import JobIds, element, plain_folder, plain_name

# Parse ``qstat -f`` and ``pbsnodes``, in OpenPBS's JSON or in the text that Torque also prints.

_CTIME = "%a %b %d %H:%M:%S %Y"
_STATES: Mapping[str, JobState] = {
    "Q": "pending",
    "T": "pending",  # on its way to another queue
    "W": "pending",  # for its begin
    "B": "pending",  # an array of which some have begun
    "H": "held",
    "R": "running",
    "S": "running",  # suspended
    "U": "running",  # suspended, as a person uses the machine
    "E": "running",  # at its end, but it has its nodes yet
    "F": "ended",
    "X": "ended",  # of an array
    "C": "ended",  # Torque's
}
_WORDS = {"S": "suspended", "U": "suspended", "E": "exiting", "T": "being moved"}

_DELETED = 91
"""``substate``: terminated (OpenPBS)."""

_TIME = -29
"""``Exit_status``: JOB_EXEC_KILL_WALLTIME (OpenPBS)."""

_TIME_TORQUE = -11
"""The same, JOB_EXEC_OVERLIMIT_WT (Torque)."""

_UNITS = {"b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40, "w": 8}
_DOWN = frozenset(
    {
        "down",
        "offline",
        "unknown",
        "state-unknown",
        "stale",
        "provisioning",
        "sleep",
        "maintenance",
        "unresolvable",
        "wait-provisioning",
        "powered-off",
        "busy",
    }
)
_FULL = frozenset({"job-exclusive", "job-busy", "resv-exclusive", "reserve"})


def parse_entries(text: str, kind: str) -> tuple[dict[str, Entry], dict[str, str]] | None:
    """
    Parse entries by name; for unreadable entries, return the reason by name.

    Parameters
    ----------
    text
        JSON or not.
    kind
        ``"Jobs"``, ``"nodes"`` or ``"Queue"``.

    Returns
    -------
    tuple or None
        None when the text is neither JSON nor a table, and so says nothing of any entry.
    """
    if text.lstrip().startswith("{"):
        return _parse_json(text, kind)
    if not text.strip():
        return {}, {}
    entries = _parse_text(text, kind)
    return (entries, {}) if entries else None


def _parse_json(text: str, kind: str) -> tuple[dict[str, Entry], dict[str, str]] | None:
    with contextlib.suppress(ValueError):
        whole = json.loads(text, strict=False)
        found = whole.get(kind, {})
        if isinstance(found, dict):
            odd = {name: "no table" for name, it in found.items() if not isinstance(it, dict)}
            return {name: it for name, it in found.items() if name not in odd}, odd
    if f'"{kind}"' not in text:
        return None
    entries: dict[str, Entry] = {}
    odd = {}
    # One odd value makes the whole document invalid JSON: the other entries are still read.
    for name, block in _blocks(text.partition(f'"{kind}"')[2]):
        try:
            entry = json.loads(block, strict=False)
        except ValueError as error:
            odd[name] = f"cannot be read: {error}"
            continue
        entries[name] = entry
    return entries, odd


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """Split a table that is no valid JSON into entries, by indentation."""
    first = re.search(r'^([ \t]*)"[^"\n]+"\s*:\s*\{', text, re.MULTILINE)
    if first is None:
        return
    head = re.compile(rf'^{re.escape(first[1])}"([^"\n]+)"\s*:\s*(?=\{{)', re.MULTILINE)
    heads = list(head.finditer(text))
    for number, found in enumerate(heads):
        end = heads[number + 1].start() if number + 1 < len(heads) else len(text)
        block = text[found.end() : end]
        last = re.search(rf"^{re.escape(first[1])}\}}", block, re.MULTILINE)
        yield found[1], block[: last.end()] if last else block


def _parse_text(text: str, kind: str) -> dict[str, Entry]:
    """``Job Id: 1.server`` or ``node1``, then ``    attribute = value``; a tab continues one."""
    entries: dict[str, dict[str, Any]] = {}
    entry: dict[str, Any] | None = None
    for line in re.sub(r"\n\t", "", text).splitlines():
        if line.strip() and not line[0].isspace():
            name = re.sub(r"^(Job Id|Queue)\s*:\s*", "", line).strip()
            entry = entries.setdefault(name, {})
            continue
        name, equals, value = line.partition(" = ")
        if entry is None or not equals:
            continue
        table, dot, rest = name.strip().partition(".")
        if dot and isinstance(within := entry.setdefault(table, {}), dict):
            within[rest] = value.strip()
        else:
            entry[name.strip()] = value.strip()
    return {name: it for name, it in entries.items() if it}


def read_job(id: str, entry: Entry) -> ListedJob:
    """Parse one job; one that cannot be read has the state ``"unknown"`` and a reason."""
    return read_or_unknown(id, "qstat", lambda: _read_job(id, entry))


def _read_job(id: str, entry: Entry) -> ListedJob:
    letter = str(entry["job_state"])
    asked, used = entry.get("Resource_List", {}), entry.get("resources_used", {})
    limit = seconds(str(asked["walltime"])) if "walltime" in asked else None
    spent = seconds(str(used["walltime"])) if "walltime" in used else None
    state = _STATES.get(letter, "unknown")
    if state == "pending" and str(entry.get("Hold_Types", "n")).strip() not in ("n", "None", ""):
        state = "held"
    comment = str(entry.get("comment", ""))
    how: JobEnding | None = None
    if state == "ended":
        how, why = _end_of(entry, limit, spent)
        reason = why or comment
    elif state == "unknown":
        moved = "moved to another server" if letter == "M" else "in a state that is not known"
        reason = f"{moved}: {letter!r}"
    else:
        reason = ", ".join(word for word in (_WORDS.get(letter), comment) if word)
    began = _time(entry.get("stime") or entry.get("start_time"))
    ended = _time(entry.get("comp_time") or entry.get("obittime"))
    # Where no end is listed, begin plus the used walltime comes closest.
    if state == "ended" and ended is None and began is not None and spent is not None:
        ended = began + spent
    return ListedJob(
        id=id,
        state=state,
        how=how,
        reason=reason,
        name=str(entry.get("Job_Name", "")),
        owner=str(entry.get("Job_Owner", "")).partition("@")[0],
        queue=str(entry.get("queue", "")),
        submitted=_time(entry.get("ctime")),
        began=began,
        ended=ended,
        expected=_time(table_in(entry, "estimated").get("start_time")),
        limit=limit,
        processors=_processors(entry, asked),
        nodes=_nodes(str(entry.get("exec_host", ""))),
        spent=spent,
    )


def _end_of(entry: Entry, limit: float | None, spent: float | None) -> tuple[JobEnding, str]:
    """Return a job's ending and the reason, empty where the job's comment gives the reason."""
    substate = str(entry.get("substate", ""))
    status = entry.get("Exit_status", entry.get("exit_status"))
    torque = "comp_time" in entry or entry.get("job_state") == "C"
    if status is None:
        return ("cancelled", "") if substate == str(_DELETED) or torque else ("unknown", "")
    code = int(status)
    words = f"exit status {code}"
    if code == (_TIME_TORQUE if torque else _TIME):
        return "timeout", f"{words}: over its walltime"
    if code < 0:
        comment = str(entry.get("comment", ""))
        lost = re.search(r"node.*(fail|down|lost)", comment, re.IGNORECASE)
        # The scheduler's own failures: before the job, or a limit of memory and the like.
        how: JobEnding = "node-fail" if lost else "failed" if -29 < code < -23 else "rejected"
        return how, f"{words}: {comment}" if comment else words
    if code > 256:  # ended by that signal
        over = limit is not None and spent is not None and spent >= limit
        return "timeout" if over else "cancelled", f"{words}: signal {code - 256}"
    if substate == str(_DELETED):
        return "cancelled", words
    return ("completed", "") if code == 0 else ("failed", words)


def read_node(name: str, entry: Entry) -> ClusterNode:
    """
    Parse one node.

    Raises
    ------
    ValueError
        When the entry cannot be read.
    """
    state = str(entry.get("state", ""))
    words = {word.strip() for word in state.split(",")}
    there, taken = table_in(entry, "resources_available"), table_in(entry, "resources_assigned")
    processors = int(there.get("ncpus", entry.get("np", entry.get("pcpus", 0))))
    if "np" in entry:  # Torque: a list of slots, 0-3/1.server or 0/1.server, 1/1.server
        allocated = sum(len(expand_numbers(part)) for part in _taken(str(entry.get("jobs", ""))))
    else:
        allocated = int(taken.get("ncpus", 0))
    # A reserved or exclusive node lists free processors that no job of ours can have.
    if words & _FULL:
        allocated = processors
    status = dict(
        part.partition("=")[::2] for part in str(entry.get("status", "")).split(",") if "=" in part
    )
    return ClusterNode(
        name=name,
        processors=processors,
        allocated=min(allocated, processors),
        up=bool(state) and not words & _DOWN,
        state=state or "unknown",
        memory=_bytes(str(there.get("mem", status.get("physmem", "")))),
    )


def serves(entry: Entry, queue: str | None) -> bool:
    """Whether a node takes jobs of a queue; one that names none takes all."""
    only = str(entry.get("queue", table_in(entry, "resources_available").get("Qlist", "")))
    return queue is None or not only or queue in (word.strip() for word in only.split(","))


def read_queue(entry: Entry) -> tuple[float | None, bool]:
    """Longest time of a job, seconds, and whether jobs are started."""
    longest = table_in(entry, "resources_max").get("walltime")
    limit = None
    with contextlib.suppress(ValueError):
        limit = seconds(str(longest)) if longest is not None else None
    return limit, str(entry.get("started", "True")) == "True"


def _time(value: object) -> float | None:
    """Parse epoch seconds, or a time in the C library's format."""
    if value is None:
        return None
    text = str(value)
    return float(text) if re.fullmatch(r"\d{6,}", text) else parse_moment(text, _CTIME)


def _processors(entry: Entry, asked: Entry) -> int | None:
    if "ncpus" in asked and "nodes" not in asked:
        return int(asked["ncpus"])
    if "procs" in asked:
        return int(asked["procs"])
    if "nodes" in asked:  # 2:ppn=4+1:ppn=2; a name counts as one
        total = 0
        for part in str(asked["nodes"]).split("+"):
            count, _, rest = part.partition(":")
            per_node = re.search(r"ppn=(\d+)", rest)
            total += (int(count) if count.isdigit() else 1) * int(per_node[1] if per_node else 1)
        return total
    hosts = str(entry.get("exec_host", ""))
    return len(hosts.split("+")) if hosts else None


def _nodes(exec_host: str) -> tuple[str, ...]:
    """Parse the node names of an ``exec_host``, for example ``n1/0*2+n2/0``."""
    return tuple(dict.fromkeys(part.partition("/")[0] for part in exec_host.split("+") if part))


def _taken(jobs: str) -> list[str]:
    """Slots of Torque's ``jobs``, without the jobs."""
    return re.findall(r"(\d[\d,-]*)/\d", jobs)


def _bytes(text: str) -> int | None:
    found = re.fullmatch(r"(\d+)([a-z]*)", text.lower())
    return int(found[1]) * _UNITS[found[2] or "b"] if found and found[2] in ("", *_UNITS) else None


# Run PBS's commands and parse the output.

_GIVEN = re.compile(r"^(\d+)(\[\])?(\.\S+)?\s*$", re.MULTILINE)
_NO_HISTORY = "not configured to maintain job history"

COMPLAINTS = (
    KnownComplaint(
        r"cannot connect to server|connection (refused|timed out|reset)|communication failure"
        r"|end of file|server shutting down|no server to connect|errno=1500[78]|errno=15010"
        r"|protocol \(asn\.1\)|premature end",
        "the server does not answer",
        transient=True,
    ),
    KnownComplaint(r"unknown queue|no default queue", 'name one that "qstat -Q" lists as "queue"'),
    KnownComplaint(r"queue is not enabled|not accept", 'the queue is closed: name another "queue"'),
    KnownComplaint(
        r"exceeds? queue|violates queue|resource limits|exceed .*(walltime|ncpus|nodect)",
        "ask for less time or fewer processors, or name another queue",
    ),
    KnownComplaint(
        r"would exceed|maximum number of jobs|per-user limit|limit on number|job limit",
        'your share of jobs is used up: lower "max_pending"',
    ),
    KnownComplaint(r"invalid account|account", 'look at "account"'),
    KnownComplaint(
        r"unauthorized|permission denied|not allowed", "ask the administrators for access"
    ),
    KnownComplaint(r"unknown resource|illegal|usage:", 'look at the site\'s "directives"'),
)


class PBS(CommandAdapter):
    """
    Adapter to OpenPBS (also PBS Professional) or Torque, with the rights of a plain user.

    Not run live: held to outputs recorded by others and to the documentation. Which of the two
    it is, is asked once. Of jobs that are gone OpenPBS tells where it keeps a history; Torque
    lists them for a while only (``keep_completed``).
    """

    title = "PBS"
    complaints = COMPLAINTS
    cancelling = ("qdel",)
    mark = "#PBS"
    options: ClassVar = {"queue": "-q {}", "account": "-A {}", "qos": "-l qos={}"}
    gone = r"unknown job id|job has finished|invalid state for job|request invalid for state"

    def __init__(self, batch: BatchScheduler, shell: CommandRunner | None = None) -> None:
        super().__init__(batch, shell)
        self._torque: bool | None = None
        self._history = True

    @property
    def abilities(self) -> ManagerCapabilities:
        """Capabilities of the scheduler."""
        return ManagerCapabilities(arrays=True, begin=True, accounting=self._torque is not True)

    async def _hand_in(self, request: JobRequest, script: str) -> JobIds:
        return _elements(await self._output_of(["qsub"], stdin=script), request.copies)

    async def _named(self, name: str, copies: int) -> JobIds:
        command = ["qselect", "-N", name, "-u", await self._who()]
        text = await self._output_of(command, doing="qselect")
        return _elements(text, copies) if text.strip() else []

    async def queue(self) -> QueueState:
        """
        Read the queue by three commands; reservations are not read, and their nodes count as full.
        """
        queue = self._batch.queue
        torque = await self._is_torque()
        jobs, _ = self._entries("qstat", await self._output_of(self._status(torque)), "Jobs")
        text = await self._output_of(["pbsnodes", "-a", *self._format(torque)])
        nodes, _ = self._entries("pbsnodes", text, "nodes")
        text = await self._output_of(["qstat", "-Q", "-f", *self._format(torque)])
        queues, _ = self._entries("qstat -Q", text, "Queue")
        if queue is not None and queues and queue not in queues:
            raise SiteError(f"PBS has no queue {queue}, but {', '.join(sorted(queues))}")
        there = []
        for name, entry in nodes.items():
            if serves(entry, queue):
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    there.append(read_node(name, entry))
        seen = [read_job(id, entry) for id, entry in jobs.items()]
        ours = [job for job in seen if queue in (None, job.queue)]
        longest, up = read_queue(queues[queue]) if queue in queues else (None, True)
        return await self._queue_of(ours, there, longest=longest, up=up)

    async def _seen(self, ids: Sequence[str]) -> dict[str, ListedJob]:
        torque = await self._is_torque()
        answer = await self._run([*self._status(torque, history=True), *ids])
        # Sites may switch the history off; asked once, then only listed jobs are looked up.
        if _NO_HISTORY in answer.stderr:
            self._history = False
            answer = await self._run([*self._status(torque, history=True), *ids])
        job_is_gone = re.search(self.gone, answer.stderr, re.IGNORECASE)
        if answer.status != 0 and not answer.stdout.strip() and not job_is_gone:
            raise self._error("qstat", answer)
        jobs, odd = self._entries("qstat", answer.stdout, "Jobs")
        by_number = {_short(name): (name, entry) for name, entry in jobs.items()}
        odd = {_short(name): why for name, why in odd.items()}
        seen = {}
        for id in ids:
            if (found := by_number.get(_short(id))) is not None:
                seen[id] = read_job(id, found[1])
            else:
                why = odd.get(_short(id), "neither listed nor in the history")
                seen[id] = unknown_report(id, why)
        return seen

    async def _script(self, request: JobRequest) -> str:
        torque = await self._is_torque()
        folder = plain_folder(request)
        directives = [
            f"-N {plain_name(request)}",
            f"-o {folder}/" + ("$PBS_JOBID.out" if torque else ""),
            "-j oe",
            # A pilot that is started twice would come with the same credential.
            "-r n",
            f"-l walltime={format_walltime(request.seconds)}",
            *self._size(request, torque),
            *self._site_options(request.reservation),  # a reservation is a queue
        ]
        if request.copies > 1:
            directives.append(f"{'-t' if torque else '-J'} 0-{request.copies - 1}")
        if request.begin is not None:
            begin = time.gmtime(-(-request.begin // 1))
            directives.append(f"-a {time.strftime('%Y%m%d%H%M.%S', begin)}")
        number = element("PBS_ARRAYID" if torque else "PBS_ARRAY_INDEX", 0)
        return self._job_script(request, directives, f"cd {folder} || exit 1", number)

    def _size(self, request: JobRequest, torque: bool) -> list[str]:
        """Options for nodes and processors; of a range of nodes PBS is asked for the least."""
        each = request.processors
        if request.nodes is not None:
            nodes = request.nodes[0]
            if torque:
                return [f"-l nodes={nodes}:ppn={each}"]
            return [f"-l select={nodes}:ncpus={each}", "-l place=scatter"]
        if request.together or each == 1:
            return [f"-l nodes=1:ppn={each}" if torque else f"-l select=1:ncpus={each}"]
        return [f"-l procs={each}" if torque else f"-l select={each}:ncpus=1"]

    def _status(self, torque: bool, *, history: bool = False) -> list[str]:
        if torque:
            return ["qstat", "-f", "-1", "-t"]
        asked = ["-x"] if history and self._history else []
        return ["qstat", "-f", "-F", "json", "-t", *asked]

    def _format(self, torque: bool) -> list[str]:
        return [] if torque else ["-F", "json"]

    def _entries(self, doing: str, text: str, kind: str) -> tuple[dict[str, Entry], dict[str, str]]:
        found = parse_entries(text, kind)
        if found is None:
            raise unreadable_output_error(doing, text)
        return found

    async def _is_torque(self) -> bool:
        if self._torque is None:
            answer = await self._run(["qstat", "--version"])
            output = f"{answer.stdout}{answer.stderr}"
            if not re.search(r"version", output, re.IGNORECASE):
                raise self._error("qstat --version", answer)
            self._torque = "pbs_version" not in output
        return self._torque


def _elements(text: str, copies: int) -> JobIds:
    """Return the ids of a submission: ``7.server``, or ``7[0].server`` and so on for an array."""
    found = _GIVEN.findall(text)
    if not found:
        raise unreadable_output_error("qsub", text)
    number, array, server = found[-1]
    if not array:
        return [f"{number}{server}"]
    return [f"{number}[{index}]{server}" for index in range(copies)]


def _short(id: str) -> str:
    """Return an id without the server, whose name commands may print shortened."""
    return id.partition(".")[0]
