"""
Jobs in the Job Description Language of the European DataGrid and gLite, as campaigns.

A file is one ClassAd: a job, a collection of jobs, or a graph of them.
``docs/reference/jdl.md`` describes what is read and what each attribute does here.

References
----------
.. [1] Pacini (2001). Job Description Language HowTo. DataGrid-01-TEN-0102.
.. [2] Pacini (2006). Job Description Language attributes specification. EGEE-JRA1-TEC-590869.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from bursar.classad.ad import ExpressionList, ExpressionNode, NestedAd
from bursar.formats.jdl_job import (
    JdlDescription,
    JdlNode,
    inheriting,
    name_of,
    read_description,
    shown,
    task_of,
)
from bursar.model.campaign import Campaign, Workflow
from bursar.model.errors import errors_within, spelling_hint
from bursar.model.task import Task

# A JDL file as tasks: one job, a collection of jobs, or a graph of them.

KINDS = ("Job", "Collection", "DAG")

_OF_ALL = ("Type", "Nodes", "Dependencies", "NodeName", "File", "Description")
"""Attributes of the ad around the nodes that no node takes over."""


def tasks_of(path: Path) -> tuple[Task, ...]:
    """
    Return the tasks of a file.

    Raises
    ------
    InputError
        At file, line and column.
    """
    whole = read_description(path)
    root = path.resolve().parent
    kind = (whole.text("Type") or "Job").lower()
    if kind not in [known.lower() for known in KINDS]:
        raise whole.error(
            "Type", f"is {shown(whole.value('Type'))}, expected one of {', '.join(KINDS)}",
            hint=spelling_hint(kind, KINDS),
        )  # fmt: skip
    if kind == "job":
        return (task_of(whole, JdlNode(path.stem, root)),)
    if "Nodes" not in whole:
        raise whole.error("Nodes", "are missing, expected the jobs")
    nodes = _collection(whole, path) if kind == "collection" else _graph(whole, path)
    if not nodes:
        raise whole.error("Nodes", "are empty, expected the jobs")
    before = _dependencies(whole, list(nodes))
    return tuple(
        task_of(inheriting(whole, node, _OF_ALL), JdlNode(name, root, name, tuple(before[name])))
        for name, node in nodes.items()
    )


def _collection(whole: JdlDescription, path: Path) -> dict[str, JdlDescription]:
    """Nodes are a list of ads; a name is ``NodeName``, or the number."""
    found: dict[str, JdlDescription] = {}
    for number, part in enumerate(whole.parts("Nodes")):
        if not isinstance(part, NestedAd):
            raise whole.error("Nodes", "expected a list of ads, one for each job")
        node = whole.inner("Nodes", part)
        name = node.text("NodeName") or f"node{number}"
        _check_name(node, name, found)
        found[name] = _described(node, path)
    return found


def _graph(whole: JdlDescription, path: Path) -> dict[str, JdlDescription]:
    """Nodes are an ad whose attributes are the nodes."""
    found: dict[str, JdlDescription] = {}
    root = whole.ad.expression("Nodes").root
    if not isinstance(root, NestedAd):
        raise whole.error("Nodes", "expected an ad, with an attribute for each job")
    inside = whole.inner("Nodes", root)
    for name, part in root.fields:
        if name.lower() == "dependencies":
            continue
        if not isinstance(part, NestedAd):
            raise inside.error(name, 'expected an ad with a description, or a "file"')
        node = inside.inner(name, part)
        _check_name(node, name, found)
        found[name] = _described(node, path)
    return found


def _check_name(node: JdlDescription, name: str, found: dict[str, JdlDescription]) -> None:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
        raise node.error("NodeName", f"is {shown(name)}, expected letters, digits, _ . -")
    if name in found:
        raise node.error("NodeName", f'"{name}" is already that of another node')


def _described(node: JdlDescription, path: Path) -> JdlDescription:
    """Return the ad of a node's job: its description, another file's, or its own."""
    if "Description" in node:
        root = node.ad.expression("Description").root
        if not isinstance(root, NestedAd):
            raise node.error("Description", "expected the ad of a job")
        return node.inner("Description", root)
    file = node.text("File")
    if file is None:
        return node
    described = read_description(path.parent / file)
    if "Nodes" in described:
        raise node.error("File", f"is {shown(file)}, which holds nodes of its own")
    return described


def _dependencies(whole: JdlDescription, names: Sequence[str]) -> dict[str, list[str]]:
    """Return the parents of each node."""
    before: dict[str, list[str]] = {name: [] for name in names}
    holder = whole
    root = whole.ad.expression("Nodes").root
    if "Dependencies" not in whole and isinstance(root, NestedAd):
        holder = whole.inner("Nodes", root)
    if "Dependencies" not in holder:
        return before
    pairs = holder.parts("Dependencies")
    if len(pairs) == 2 and not any(isinstance(pair, ExpressionList) for pair in pairs):
        pairs = [ExpressionList(tuple(pairs))]  # one pair, without the braces around it
    for pair in pairs:
        if not isinstance(pair, ExpressionList) or len(pair.items) != 2:
            raise holder.error("Dependencies", "expected pairs, { before, after }")
        earlier, later = (_names(holder, part, names) for part in pair.items)
        for name in later:
            before[name] += [other for other in earlier if other not in before[name]]
    return before


def _names(holder: JdlDescription, node: ExpressionNode, known: Sequence[str]) -> list[str]:
    """Return a node's name, or a list of names."""
    found = []
    for part in node.items if isinstance(node, ExpressionList) else (node,):
        name = name_of(part)
        match = [other for other in known if name is not None and other.lower() == name.lower()]
        if not match:
            raise holder.error(
                "Dependencies", f"name {shown(name or 'nothing')}, which is no node",
                hint=spelling_hint(name or "", known),
            )  # fmt: skip
        found.append(match[0])
    return found


def read_jdl(path: Path) -> Campaign:
    """
    Read the campaign that a JDL file describes.

    Parameters
    ----------
    path
        The file. Its folder is the campaign's root.

    Raises
    ------
    InputError
        At file, line and column: what was found and what was expected. Requirements and
        ranks are parsed here.
    """
    path = Path(path)
    tasks = tasks_of(path)
    with errors_within(str(path)):
        workflow = Workflow(tasks)
    return Campaign(
        name=path.stem,
        workflow=workflow,
        root=path.resolve().parent,
        source=path,
    )
