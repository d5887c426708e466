"""Asyncio tasks are started by a supervisor or a task group, and nowhere by hand."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
MODULES = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "packages").rglob("src/**/*.py")])

EXCEPTIONS = {
    "supervisor.py": "the supervisor itself",
    "simulated_process.py": "a loop of the fault simulation: its tasks end with their process",
}
"""Modules that may start tasks by hand, and why."""


def bare_tasks(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that start, or may start, a task which no supervisor or task group owns."""
    groups = {
        item.optional_vars.id
        for node in ast.walk(tree)
        if isinstance(node, ast.AsyncWith)
        for item in node.items
        if isinstance(item.optional_vars, ast.Name)
        and ast.unparse(item.context_expr) in ("asyncio.TaskGroup()", "TaskGroup()")
    }
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=owner), attr="create_task") if owner in groups:
                continue
            case ast.Attribute(attr="create_task" | "ensure_future"):
                yield node.lineno
            case ast.Name(id="create_task" | "ensure_future"):
                yield node.lineno
            case ast.alias(name="create_task" | "ensure_future"):
                yield node.lineno


def test_every_task_has_an_owner() -> None:
    """
    A failure of a task that is started by hand reaches nobody unless somebody thought of it.
    """
    found = {
        f"{module.relative_to(ROOT)}:{line}"
        for module in MODULES
        if module.name not in EXCEPTIONS
        if any(word in module.read_text() for word in ("create_task", "ensure_future"))
        for line in bare_tasks(ast.parse(module.read_text()))
    }
    assert len(MODULES) > 500
    assert found == set()


def test_each_exception_is_needed() -> None:
    """
    A module that starts no task by hand any more is to be taken off the list.
    """
    needed = {
        module.name
        for module in MODULES
        if module.name in EXCEPTIONS and any(bare_tasks(ast.parse(module.read_text())))
    }
    assert needed == EXCEPTIONS.keys()


def test_bare_tasks_are_found() -> None:
    """
    However the function is imported or called; tasks of a task group have an owner.
    """
    source = """
from asyncio import create_task
async def f(loop):
    asyncio.create_task(g())
    asyncio.ensure_future(g())
    loop.create_task(g())
    asyncio.get_running_loop().create_task(g())
    create_task(g())
    start = loop.create_task
    async with asyncio.TaskGroup() as group:
        group.create_task(g())
"""
    assert sorted(bare_tasks(ast.parse(source))) == [2, 4, 5, 6, 7, 8, 9]
