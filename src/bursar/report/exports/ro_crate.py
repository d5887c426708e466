"""
A run as the metadata of a Provenance Run Crate: RO-Crate 1.1 with the Workflow Run profiles 0.5.

https://www.researchobject.org/workflow-run-crate/. The profiles map to W3C PROV: an action is an
activity, ``object`` is what the activity used and ``result`` what it generated, and ``instrument``
and ``agent`` stand for plan and association.
"""

import mimetypes
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from bursar.model.money import from_micros
from bursar.model.task import Task
from bursar.report.exports.exported_run import (
    ExportedAttempt,
    ExportedRun,
    moment,
    present,
    succeeded,
)
from bursar.version import VERSION

METADATA = "ro-crate-metadata.json"
WORKFLOW = "workflow.json"
"""File of the crate with the workflow, in WfFormat."""
README = "README.md"
BILL = "bill.json"
JOBS = "jobs.csv"
FILES = "files"
"""Folder of the crate with what the tasks read and made."""

_PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": "Process Run Crate",
    "https://w3id.org/ro/wfrun/workflow/0.5": "Workflow Run Crate",
    "https://w3id.org/ro/wfrun/provenance/0.5": "Provenance Run Crate",
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": "Workflow RO-Crate",
}
_LANGUAGE = "https://github.com/wfcommons/WfFormat"
_ENGINE = "#bursar"
_RUN, _ENGINE_RUN = "#run", "#engine-run"
Entity = dict[str, Any]


def crate_document(
    run: ExportedRun,
    sizes: Mapping[str, int],
    *,
    author: str = "",
    licence: str = "",
    files: bool = True,
) -> dict[str, Any]:
    """
    Return the content of ``ro-crate-metadata.json``.

    Parameters
    ----------
    sizes
        Bytes of the crate's own files, by name: the workflow, the bill and the table of jobs.
    author
        Name of the person who ran it, or ``NAME <URL>`` with an ORCID; empty: not told.
    licence
        URL of the licence of the data; empty: the crate says that none is stated.
    files
        Whether the crate holds what the tasks read and made; else the files are only described.
    """
    return {
        "@context": [
            "https://w3id.org/ro/crate/1.1/context",
            "https://w3id.org/ro/terms/workflow-run/context",
        ],
        "@graph": list(_Crate(run, sizes, author, licence, files).entities()),
    }


def crate_name(file: str) -> str:
    """Return where in the crate a file of the run stands."""
    return f"{FILES}/{file}"


class _Crate:
    """Makes the entities of a crate."""

    def __init__(
        self, run: ExportedRun, sizes: Mapping[str, int], author: str, licence: str, files: bool
    ) -> None:
        self._run = run
        self._sizes = sizes
        name, _, url = author.partition("<")
        self._author_name = name.strip()
        self._author = url.rstrip("> ") or "#author"
        self._licence = licence
        self._has_files = files
        self._kinds = list(dict.fromkeys(map(_kind, run.workflow.tasks)))

    def entities(self) -> Iterator[Entity]:
        """Yield all entities, the descriptor first."""
        run = self._run
        names = self._file_names()
        whole = run.by_task.keys() | run.reused.keys()
        yield {
            "@id": METADATA,
            "@type": "CreativeWork",
            "about": {"@id": "./"},
            "conformsTo": [
                {"@id": "https://w3id.org/ro/crate/1.1"},
                {"@id": "https://w3id.org/workflowhub/workflow-ro-crate/1.0"},
            ],
        }
        kept = [self._file_id(name) for name in names if self._is_kept(name)]
        actions = [_ENGINE_RUN, _RUN, *map(_action_id, run.attempts)]
        described = [self._file_id(name) for name in names if not self._is_kept(name)]
        yield {
            "@id": "./",
            "@type": "Dataset",
            "name": f"Run {run.name} of {run.campaign or 'a campaign'}",
            "description": f"{len(whole)} of {len(run.workflow.tasks)} tasks of the campaign "
            f"{run.campaign or run.name}, run by Bursar: what they read and made, when and where "
            "they ran, and what that cost.",
            "datePublished": _moment(run.created if run.ended is None else run.ended),
            "license": {"@id": self._licence or "#no-licence"},
            "conformsTo": _references(_PROFILES),
            "hasPart": _references([README, WORKFLOW, BILL, JOBS, *kept]),
            "mainEntity": {"@id": WORKFLOW},
            "mentions": _references([*(actions if run.begun is not None else ()), *described]),
            **self._by("author"),
        }
        if self._author_name:
            yield {"@id": self._author, "@type": "Person", "name": self._author_name}
        for url, name in _PROFILES.items():
            version = url.rpartition("/")[2]
            yield {"@id": url, "@type": "CreativeWork", "name": name, "version": version}
        yield self._licence_entity()
        yield from self._workflow(names)
        yield self._own_file(README, "What is in this crate", "text/markdown") | {
            "about": {"@id": "./"}
        }
        yield self._own_file(BILL, "Bill of the run", "application/json")
        yield self._own_file(JOBS, "Table of all attempts", "text/csv")
        for name in names:
            yield self._file(name)
        if run.begun is not None:
            yield from self._actions(run.begun)

    def _by(self, role: str) -> Entity:
        return {role: {"@id": self._author}} if self._author_name else {}

    def _licence_entity(self) -> Entity:
        if self._licence:
            return {
                "@id": self._licence,
                "@type": "CreativeWork",
                "name": self._licence,
                "description": "Licence of the data of this crate",
            }
        return {
            "@id": "#no-licence",
            "@type": "CreativeWork",
            "name": "No licence",
            "description": "Whoever exported the run has stated no licence.",
        }

    def _workflow(self, names: Sequence[str]) -> Iterator[Entity]:
        run = self._run
        made = {file.name for task in run.workflow.tasks for file in task.outputs}
        inputs = [name for name in names if name not in made]
        outputs = [name for name in names if name in made]
        yield self._own_file(WORKFLOW, run.campaign or run.name, "application/json") | {
            "@type": ["File", "SoftwareSourceCode", "ComputationalWorkflow", "HowTo"],
            "conformsTo": {
                "@id": "https://bioschemas.org/profiles/ComputationalWorkflow/1.0-RELEASE"
            },
            "programmingLanguage": {"@id": _LANGUAGE},
            "hasPart": _references(map(_tool_id, self._kinds)),
            "step": _references(map(_step_id, self._kinds)),
            "input": _references(map(_parameter_id, inputs)),
            "output": _references(map(_parameter_id, outputs)),
        }
        yield {
            "@id": _LANGUAGE,
            "@type": "ComputerLanguage",
            "name": "WfFormat",
            "version": "1.5",
            "identifier": _LANGUAGE,
            "url": {"@id": _LANGUAGE},
        }
        for name in names:
            yield {
                "@id": _parameter_id(name),
                "@type": "FormalParameter",
                "additionalType": "File",
                "name": name,
                "conformsTo": {
                    "@id": "https://bioschemas.org/profiles/FormalParameter/1.0-RELEASE"
                },
            }
        for position, kind in enumerate(self._kinds):
            yield {
                "@id": _step_id(kind),
                "@type": "HowToStep",
                "name": kind,
                "position": str(position),
                "workExample": {"@id": _tool_id(kind)},
            }
            yield {
                "@id": _tool_id(kind),
                "@type": "SoftwareApplication",
                "name": kind,
                "description": f"What tasks of the kind {kind} run",
            }
        yield {
            "@id": _ENGINE,
            "@type": "SoftwareApplication",
            "name": "Bursar",
            "softwareVersion": VERSION,
            "description": "Broker for computing campaigns",
        }

    def _actions(self, begun: float) -> Iterator[Entity]:
        run = self._run
        ended = begun if run.ended is None else run.ended
        times = {"startTime": _moment(begun), "endTime": _moment(ended)}
        attempts: dict[str, list[ExportedAttempt]] = {}
        for one in run.attempts:
            attempts.setdefault(_kind(one.task), []).append(one)
        yield {
            "@id": _ENGINE_RUN,
            "@type": "OrganizeAction",
            "name": f"Bursar carries out the run {run.name}",
            "instrument": {"@id": _ENGINE},
            "object": _references(map(_control_id, attempts)),
            "result": {"@id": _RUN},
            **times,
            **self._by("agent"),
        }
        for kind, members in attempts.items():
            yield {
                "@id": _control_id(kind),
                "@type": "ControlAction",
                "name": f"Starts the tasks of the kind {kind}",
                "instrument": {"@id": _step_id(kind)},
                "object": _references(map(_action_id, members)),
            }
        read = dict.fromkeys(f.name for f in run.workflow.initial_files)
        written = dict.fromkeys(
            file.name for one in run.attempts if succeeded(one.record) for file in one.task.outputs
        )
        totals = {
            "cost": from_micros(run.bill.total),
            "makespan": run.makespan,
            "deadline": run.goal.deadline,
            "budget": run.goal.budget,
        }
        units = {
            "cost": run.bill.currency,
            "budget": run.bill.currency,
            "makespan": "SEC",
            "deadline": "SEC",
        }
        measured = [
            _property(f"#run/{name}", name, value, units[name])
            for name, value in totals.items()
            if value is not None
        ]
        yield {
            "@id": _RUN,
            "@type": "CreateAction",
            "name": f"Run {run.name}",
            "description": f"Execution of the campaign {run.campaign or run.name}",
            "instrument": {"@id": WORKFLOW},
            "object": _references(map(self._file_id, read)),
            "result": _references(map(self._file_id, written)),
            "resourceUsage": _references(one["@id"] for one in measured),
            **_ending(run.state == "finished", f"the run is {run.state}"),
            **times,
            **self._by("agent"),
        }
        yield from measured
        seen: set[str] = set()
        for one in run.attempts:
            for entity in self._attempt(one):
                # Values of parameters and sites are shared by many attempts.
                if entity["@id"] not in seen:
                    seen.add(entity["@id"])
                    yield entity

    def _attempt(self, one: ExportedAttempt) -> Iterator[Entity]:
        record, task = one.record, one.task
        outcome, action = record.outcome, _action_id(one)
        fine = succeeded(record)
        parameters = [
            _property(f"#parameter/{quote(name)}/{quote(str(value), safe='')}", name, value)
            for name, value in task.parameters.items()
        ]
        currency = self._run.bill.currency
        used = [
            _property(f"{action}/processors", "processors", task.processors, "C62"),
            _property(f"{action}/cost", "cost", from_micros(one.cost), currency),
            _property(f"{action}/cpu", "processor time", one.processor_time, "SEC"),
            _property(f"{action}/memory", "largest resident set", outcome.max_rss, "AD"),
        ]
        place = f"#site/{quote(record.site, safe='')}"
        command = self._run.command_of(task)
        made = _references([self._file_id(f.name) for f in task.outputs] if fine else [])
        reads = [*map(self._file_id, (f.name for f in task.inputs))]
        yield {
            "@id": action,
            "@type": "CreateAction",
            "name": f"Task {task.id}, attempt {outcome.attempt}",
            "instrument": {"@id": _tool_id(_kind(task))},
            "object": _references([*reads, *(p["@id"] for p in parameters)]),
            **present({"result": made}),
            "resourceUsage": _references(p["@id"] for p in used),
            "startTime": _moment(outcome.start),
            "endTime": _moment(one.end),
            "description": " ".join(command) or f"One attempt to carry out the task {task.id}",
            "location": {"@id": place},
            **self._by("agent"),
            **_ending(fine, outcome.reason or str(outcome.status)),
        }
        yield {"@id": place, "@type": "Place", "name": record.site}
        yield from parameters
        yield from used

    def _file_names(self) -> list[str]:
        tasks = self._run.workflow.tasks
        return list(dict.fromkeys(f.name for task in tasks for f in (*task.inputs, *task.outputs)))

    def _is_kept(self, name: str) -> bool:
        return self._has_files and name in self._run.places

    def _file_id(self, name: str) -> str:
        if self._is_kept(name):
            return quote(crate_name(name))
        return f"#file/{quote(name)}"

    def _file(self, name: str) -> Entity:
        kind, encoding = mimetypes.guess_type(name)
        size = self._run.size_of(name)
        common = present({"contentSize": None if size is None else str(size), "name": name}) | {
            "exampleOfWork": {"@id": _parameter_id(name)}
        }
        if not self._is_kept(name):
            return {"@id": self._file_id(name), "@type": "CreativeWork"} | common
        form = kind if kind and encoding is None else "application/octet-stream"
        return {"@id": self._file_id(name), "@type": "File", "encodingFormat": form} | common

    def _own_file(self, name: str, title: str, form: str) -> Entity:
        return {
            "@id": name,
            "@type": "File",
            "name": title,
            "encodingFormat": form,
            "contentSize": str(self._sizes[name]),
        }


def _moment(seconds: float) -> str:
    """Write a moment to the millisecond, as the profiles' validator expects."""
    return moment(seconds, "milliseconds")


def _kind(task: Task) -> str:
    return task.name or "task"


def _references(ids: Any) -> Any:
    """Return references to entities; a single one is no list, as RO-Crate recommends."""
    found = [{"@id": one} for one in dict.fromkeys(ids)]
    return found[0] if len(found) == 1 else found


def _property(id: str, name: str, value: Any, unit: str = "") -> Entity:
    """
    Return a value with its name.

    Parameters
    ----------
    unit
        UN/CEFACT common code (``SEC`` seconds, ``AD`` bytes, ``C62`` a number) or a currency;
        empty: the value has none.
    """
    found = {"@id": id, "@type": "PropertyValue", "name": name, "value": str(value)}
    return found | (
        {"propertyID": f"bursar:{name.replace(' ', '-')}", "unitCode": unit} if unit else {}
    )


def _ending(fine: bool, reason: str) -> Entity:
    word = "Completed" if fine else "Failed"
    status = {"actionStatus": f"http://schema.org/{word}ActionStatus"}
    return status if fine else status | {"error": reason}


def _tool_id(kind: str) -> str:
    return f"#tool/{quote(kind, safe='')}"


def _step_id(kind: str) -> str:
    return f"{WORKFLOW}#step/{quote(kind, safe='')}"


def _parameter_id(name: str) -> str:
    return f"#formal/{quote(name, safe='')}"


def _control_id(kind: str) -> str:
    return f"#control/{quote(kind, safe='')}"


def _action_id(one: ExportedAttempt) -> str:
    return f"#attempt/{one.number}/{one.record.outcome.attempt}"
