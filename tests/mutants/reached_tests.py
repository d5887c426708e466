"""A mutant meets the tests that reach its statement, the shortest first."""

import ast

from tests.mutants.rounds import Seen


def reaching(source: str, path: str, line: int, seen: Seen, longest: float) -> list[str]:
    """
    Return the names of the tests that reach a line, shortest first.

    A line that is reached by no test, but by an import (a default, a constant), meets all tests
    that reach its file. What compiled functions reach is not seen: their mutants meet all tests.

    Parameters
    ----------
    source
        Text of the file.
    path
        The file, as in ``seen``.
    line
        Where the mutated expression begins, from 1.
    seen
        What a clean run has shown.
    longest
        Seconds that the tests may take together; the first is always kept.
    """
    lines = seen.lines.get(path, {})
    begin, end = _statement(source, line)
    names = {name for at in range(begin, end + 1) for name in lines.get(str(at), ())}
    if not names and any(str(at) in lines for at in range(begin, end + 1)):
        names = {name for told in lines.values() for name in told}
    if not names and _is_compiled(source, line):
        names = set(seen.seconds)
    chosen: list[str] = []
    total = 0.0
    for name in sorted(names, key=lambda name: (seen.seconds[name], name)):
        total += seen.seconds[name]
        if chosen and total > longest:
            break
        chosen.append(name)
    return chosen


def _is_compiled(source: str, line: int) -> bool:
    """Whether a line is of a function that Numba compiles."""
    return any(
        isinstance(node, ast.FunctionDef)
        and node.lineno <= line <= (node.end_lineno or 0)
        and any("compiled" in ast.dump(each) for each in node.decorator_list)
        for node in ast.walk(ast.parse(source))
    )


def _statement(source: str, line: int) -> tuple[int, int]:
    """First and last line of the innermost statement around a line, without its body."""
    found = [(line, line)]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            end = body[0].lineno - 1 if body else node.end_lineno or node.lineno
            if node.lineno <= line <= max(end, node.lineno):
                found.append((node.lineno, max(end, node.lineno)))
    return max(found[1:] or found)  # the last to begin is the innermost
