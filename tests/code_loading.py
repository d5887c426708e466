"""Finds where a module loads code: unpickles, imports by name, evaluates, opens a library."""

import ast
import re
from typing import NamedTuple

HARMLESS: dict[str, frozenset[str]] = {
    "pickle": frozenset({"dump", "dumps", "HIGHEST_PROTOCOL", "PicklingError"}),
    "cloudpickle": frozenset({"dump", "dumps"}),
    "importlib.resources": frozenset({"files"}),
    "ctypes": frozenset(
        [
            "Structure",
            "byref",
            "c_char_p",
            "c_int",
            "c_long",
            "c_short",
            "c_uint",
            "c_ulong",
            "c_void_p",
            "create_string_buffer",
            "get_errno",
            "py_object",
            "set_errno",
            "sizeof",
        ]
    ),
}
"""What of a watched module loads nothing."""

WATCHED = frozenset(
    [
        "_pickle",
        "builtins",
        "cPickle",
        "cffi",
        "cloudpickle",
        "code",
        "codeop",
        "copyreg",
        "ctypes",
        "dask",
        "dill",
        "distributed",
        "imp",
        "importlib",
        "importlib.metadata",
        "importlib.resources",
        "importlib.util",
        "importlib.machinery",
        "joblib",
        "jsonpickle",
        "marshal",
        "multiprocessing",
        "numba",
        "pickle",
        "pkg_resources",
        "pkgutil",
        "runpy",
        "shelve",
        "torch",
        "yaml",
        "zipimport",
    ]
)
"""Modules of which everything else is taken to load code."""

BUILT_IN = frozenset({"eval", "exec", "compile", "__import__"})

ANYWHERE = frozenset(
    [
        "CDLL",
        "LoadLibrary",
        "ProcessPoolExecutor",
        "Unpickler",
        "dictConfig",
        "enable_load_extension",
        "entry_points",
        "exec_module",
        "fileConfig",
        "import_module",
        "load",
        "load_extension",
        "load_module",
        "loads",
        "run_module",
        "run_path",
        "spec_from_file_location",
    ]
)
"""Attributes that are looked at whatever they are of: ``json.loads`` is listed, too."""


class Place(NamedTuple):
    """
    One place in the source.

    Parameters
    ----------
    function
        Qualified name of the function or class around; empty for the module itself.
    loads
        What is used there, as ``pickle.loads``.
    """

    function: str
    loads: str


def places(source: str) -> set[Place]:
    """Return where a module loads code, or what looks like loading code."""
    if not _WORDS.search(source):
        return set()
    tree = ast.parse(source)
    finder = _Finder(_modules(tree))
    finder.visit(tree)
    return finder.found


_COMMON = frozenset({"code", "imp"})  # words that say something only where they are imported
_WORDS = re.compile(
    rf"\b(?:{'|'.join([*(WATCHED - _COMMON), *ANYWHERE, 'allow_pickle'])})\b"
    rf"|(?<![.\w])(?:{'|'.join(BUILT_IN)})\b"
    rf"|(?:import|from|,)\s+(?:{'|'.join(_COMMON)})\b"
)
"""Without any of these a module loads nothing, and need not be parsed."""


def _modules(tree: ast.AST) -> dict[str, str]:
    """Watched modules, by the names that they have in the source."""
    named: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                if top in WATCHED:
                    named[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                if whole in WATCHED:
                    named[alias.asname or alias.name] = whole
    return named


class _Finder(ast.NodeVisitor):
    def __init__(self, modules: dict[str, str]) -> None:
        self.found: set[Place] = set()
        self._modules = modules
        self._around: list[str] = []

    def _note(self, loads: str) -> None:
        self.found.add(Place(".".join(self._around), loads))

    def _visit_named(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        self._around.append(node.name)
        self.generic_visit(node)
        self._around.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _visit_named  # noqa: N815

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            if whole not in WATCHED and (
                _is_watched(str(node.module), alias.name) or alias.name in ANYWHERE
            ):
                self._note(whole)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        first, _, rest = _dotted(node.value).partition(".")
        module = self._modules.get(first)
        if module is not None:
            whole = f"{module}.{rest}" if rest else module
            if f"{whole}.{node.attr}" not in WATCHED and _is_watched(whole, node.attr):
                self._note(f"{whole}.{node.attr}")
            return
        if node.attr in ANYWHERE:
            self._note(ast.unparse(node))
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in self._modules:  # handed on as a whole
            self._note(self._modules[node.id])
        elif node.id in BUILT_IN:
            self._note(node.id)

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg == "allow_pickle":
            self._note("allow_pickle")
        self.generic_visit(node)


def _is_watched(module: str, name: str) -> bool:
    parts = module.split(".")
    around = {".".join(parts[: k + 1]) for k in range(len(parts))}
    return not around.isdisjoint(WATCHED) and name not in HARMLESS.get(module, frozenset())


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = _dotted(node.value)
        return base and f"{base}.{node.attr}"
    return ""
