"""Exports of a run: what leaves its folder, and the files, crates and requests that carry it."""

import io
import os
import shutil
import urllib.error
import urllib.request
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import unquote, urlsplit, urlunsplit

import msgspec

from bursar.dispatch.folders import remove_tree
from bursar.dispatch.journal_records import AttemptRecord
from bursar.formats.file_text import replacing
from bursar.model.campaign import Workflow
from bursar.model.errors import BursarError, InputError
from bursar.model.money import format_amount
from bursar.report.bill import charged_attempts
from bursar.report.exports.attempt_tables import attempt_table, write_jobs
from bursar.report.exports.exported_run import ExportedAttempt, ExportedRun
from bursar.report.exports.ro_crate import (
    BILL,
    FILES,
    JOBS,
    METADATA,
    README,
    WORKFLOW,
    crate_document,
    crate_name,
)
from bursar.report.exports.spans import trace_requests
from bursar.report.exports.wfformat_document import wfformat_document
from bursar.runs.run_record import RunRecord
from bursar.version import VERSION

SPANS_AT_ONCE = 1000
"""Spans in one request to a collector: about 1 MB, which collectors accept by default."""

ANSWER_TIME = 30.0
"""Seconds within which a collector has to answer."""


def exported_run(record: RunRecord, *, commands: bool = True) -> ExportedRun:
    """
    Return what an export tells of a run, also while the run goes on.

    Parameters
    ----------
    commands
        Whether the command lines of tasks are told.
    """
    campaign = record.campaign
    workflow = campaign.workflow
    charged = charged_attempts(record.ledger, record.leases, workflow.tasks, record.attempts)
    begins = [begin for begin, _ in record.incarnations]
    attempts = list(_attempts(workflow, charged, record.final, begins[0] if begins else 0.0))
    places = _places(record, workflow)
    return ExportedRun(
        name=record.folder.name,
        identity=f"{record.folder.identity} {record.info.created!r}",
        campaign=record.info.campaign,
        state=record.info.state,
        created=record.info.created,
        goal=campaign.goal,
        workflow=workflow,
        attempts=attempts,
        final=record.final,
        skipped=record.skipped,
        reused=record.reused,
        begun=min([*begins[:1], *(a.record.outcome.start for a in attempts)], default=None),
        ended=max((a.end for a in attempts), default=None),
        makespan=record.makespan,
        sites=record.info.sites,
        leases={lease.id: lease for lease in record.leases},
        bill=record.bill,
        sizes={name: place.stat().st_size for name, place in places.items()},
        places=places,
        commands=commands,
    )


def _attempts(
    workflow: Workflow,
    charged: Mapping[int, list[tuple[AttemptRecord, int]]],
    final: Mapping[int, AttemptRecord],
    begun: float,
) -> Iterator[ExportedAttempt]:
    """Yield the attempts, each with the moment from which it could have begun."""
    for number in sorted(charged):
        ends = [final[parent] for parent in workflow.parents[number] if parent in final]
        # The times of a reused result are those of another run.
        before = [begun, *(one.outcome.end for one in ends if not one.is_reused)]
        for record, cost in charged[number]:
            start = record.outcome.start
            yield ExportedAttempt(
                record=record,
                number=number,
                task=workflow.tasks[number],
                ready=min(max(before), start),
                cost=cost,
            )
            before.append(record.outcome.end)


def _places(record: RunRecord, workflow: Workflow) -> dict[str, Path]:
    """
    Return where the files that tasks read and made are on disk; those that are gone are absent.

    A link that leads out of its folder is not followed: an export holds no files but the run's.
    """
    made = dict.fromkeys(file.name for task in workflow.tasks for file in task.outputs)
    read = [file.name for file in workflow.initial_files]
    own, root = record.folder.files, record.campaign.root
    found = {}
    for name in (*read, *made):
        # What is in the run's own folder shadows the campaign's.
        for base in (own,) if name in made else (own, root):
            path = base / name
            try:
                if path.is_file() and path.resolve().is_relative_to(base.resolve()):
                    found[name] = path
                    break
            except OSError:
                continue
    return found


# Files.


def _write_wfformat(run: ExportedRun, file: TextIO) -> None:
    file.write(_json(wfformat_document(run)))


def _write_trace(run: ExportedRun, file: TextIO) -> None:
    # As OTLP's file exporters do: one request, as one line.
    for request in trace_requests(run):
        file.write(msgspec.json.encode(request).decode() + "\n")


WRITERS: dict[str, Callable[[ExportedRun, TextIO], None]] = {
    "wfformat": _write_wfformat,
    "jobs-csv": write_jobs,
    "otel": _write_trace,
}
"""What writes a run as text, by format."""


def write_text(form: str, run: ExportedRun, path: Path) -> None:
    """
    Write a run in a format of :data:`WRITERS` to a file, whole or not at all.

    Raises
    ------
    BursarError
        When the file cannot be written.
    """
    with replacing(path, newline="") as file:
        WRITERS[form](run, file)


def write_parquet(run: ExportedRun, path: Path) -> None:
    """
    Write the attempts of a run as a Parquet file, whole or not at all.

    Raises
    ------
    InputError
        When pyarrow is not installed.
    BursarError
        When the file cannot be written.
    """
    table = attempt_table(run)
    from pyarrow import parquet

    with _replaced(path) as fresh:
        parquet.write_table(table, str(fresh))


def write_crate(
    run: ExportedRun, path: Path, *, author: str = "", licence: str = "", files: bool = True
) -> None:
    """
    Write a run as an RO-Crate: a new folder, or a file that ends in ``.zip``.

    Parameters
    ----------
    author, licence, files
        See :func:`bursar.report.exports.ro_crate.crate_document`.

    Raises
    ------
    InputError
        When the path is taken already.
    BursarError
        When the crate cannot be written; nothing of it is left then.
    """
    if path.exists():
        raise InputError("exists already", where=str(path), hint="give another name with -o")
    texts = {
        README: _readme(run),
        WORKFLOW: _json(wfformat_document(run)),
        BILL: _json(run.bill.to_dict()),
        JOBS: _jobs_text(run),
    }
    sizes = {name: len(text.encode()) for name, text in texts.items()}
    texts[METADATA] = _json(crate_document(run, sizes, author=author, licence=licence, files=files))
    copied = run.places if files else {}
    with _replaced(path) as fresh:
        if path.suffix == ".zip":
            with zipfile.ZipFile(fresh, "x", zipfile.ZIP_DEFLATED, strict_timestamps=False) as file:
                for name, text in texts.items():
                    file.writestr(name, text)
                for name, place in copied.items():
                    file.write(place, crate_name(name))
            return
        fresh.mkdir()
        for name, text in texts.items():
            (fresh / name).write_text(text, encoding="utf-8")
        for name, place in copied.items():
            target = fresh / crate_name(name)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(place, target)


def _readme(run: ExportedRun) -> str:
    cost = format_amount(run.bill.total, run.bill.currency)
    counts = Counter(run.status(number) for number in range(len(run.workflow.tasks)))
    tasks = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    return (
        f"# Run {run.name} of {run.campaign or 'a campaign'}\n\n"
        f"Carried out by Bursar. Tasks: {tasks}; attempts: {len(run.attempts)}; cost: {cost}.\n\n"
        f"- `{WORKFLOW}`: the workflow and its execution, in WfFormat 1.5\n"
        f"- `{JOBS}`: each attempt, with times, processors and cost\n"
        f"- `{BILL}`: the bill, to the micro-unit\n"
        f"- `{FILES}/`: what the tasks read and made, where the crate holds it\n"
    )


def _jobs_text(run: ExportedRun) -> str:
    text = io.StringIO()
    write_jobs(run, text)
    return text.getvalue()


def _json(document: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


@contextmanager
def _replaced(path: Path) -> Iterator[Path]:
    """Give a name beside a path to write to, which becomes the path when all is written."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield fresh
        fresh.replace(path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise BursarError(f"{path}: cannot be written: {reason}") from None
    finally:
        if fresh.is_dir():
            remove_tree(str(fresh))
        else:
            fresh.unlink(missing_ok=True)


# Requests to a collector of traces.


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: what a run did goes to the address that the user named, or nowhere."""

    def redirect_request(self, *_: Any) -> None:
        """Follow nothing."""


def send_trace(run: ExportedRun, endpoint: str, environment: Mapping[str, str]) -> int:
    """
    Send a run's trace to a collector by OTLP over HTTP, as JSON; return the number of spans.

    Parameters
    ----------
    endpoint
        Base address of the collector; without a path, ``/v1/traces`` is added.
    environment
        ``OTEL_EXPORTER_OTLP_HEADERS`` there has headers, such as a token.

    Raises
    ------
    InputError
        When the address or the headers cannot be used.
    BursarError
        When the collector cannot be reached, or does not accept the trace.
    """
    address = _traces_address(endpoint)
    headers = _headers(environment.get("OTEL_EXPORTER_OTLP_HEADERS", ""))
    opener = urllib.request.build_opener(_NoRedirects)
    sent = 0
    for body in trace_requests(run, SPANS_AT_ONCE):
        request = urllib.request.Request(
            address,
            data=msgspec.json.encode(body),
            headers={
                "User-Agent": f"bursar/{VERSION}",
                **headers,
                "Content-Type": "application/json",
            },
            method="POST",
        )
        try:
            with opener.open(request, timeout=ANSWER_TIME) as answer:
                refused = _refused(answer.read(65536))
        except urllib.error.HTTPError as error:
            raise BursarError(f"{endpoint}: answers {error.code} {error.reason}") from None
        except (urllib.error.URLError, OSError) as error:
            reason = getattr(error, "reason", None) or error
            raise BursarError(f"{endpoint}: cannot be reached: {reason}") from None
        if refused:
            raise BursarError(f"{endpoint}: {refused}")
        sent += len(body["resourceSpans"][0]["scopeSpans"][0]["spans"])
    return sent


def _traces_address(endpoint: str) -> str:
    try:
        parts = urlsplit(endpoint)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        known = False
    if not known:
        raise InputError(
            f'expected http://HOST:PORT or https://HOST, got "{endpoint}"', where="--endpoint"
        )
    if parts.username is not None:
        raise InputError(
            "expected no user name and no password",
            where="--endpoint",
            hint="OTEL_EXPORTER_OTLP_HEADERS has headers such as Authorization",
        )
    path = parts.path if parts.path.strip("/") else "/v1/traces"
    return urlunsplit(parts._replace(path=path))


def _headers(text: str) -> dict[str, str]:
    """Parse headers as OpenTelemetry writes them: ``name=value,name=value``, percent-encoded."""
    headers = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        value = unquote(value.strip())
        if not equals or not name.strip() or any(ord(c) < 32 for c in value):
            # Never the value: it may be a token.
            raise InputError("expected NAME=VALUE,...", where="OTEL_EXPORTER_OTLP_HEADERS")
        headers[name.strip()] = value
    return headers


def _refused(answer: bytes) -> str:
    """Return what a collector says of spans that it did not take; empty: it took all."""
    try:
        partial = msgspec.json.decode(answer or b"{}").get("partialSuccess") or {}
        count = int(partial.get("rejectedSpans") or 0)
    except (ValueError, AttributeError, TypeError):
        return ""  # 200 with a body that is not JSON means that all were taken
    return f"{count} spans were refused: {partial.get('errorMessage', '')}" if count else ""
