"""
Parses, evaluates and compiles a documented subset of the ClassAd language.

Requirements and ranks of jobs are written in it, and are held against what sites publish.
The language is described in ``docs/reference/classad.md``; where it could be in doubt it
is what HTCondor's own library answers, and the tests hold it against that.

Names are imported when first used, since parsing takes Lark and tables take NumPy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bursar.classad.ad import Ad, Expression
    from bursar.classad.compiling import compiled
    from bursar.classad.evaluation import clauses, evaluate, references
    from bursar.classad.operators import ERROR, UNDEFINED
    from bursar.classad.parsing import parse, parse_ad
    from bursar.classad.table import Table

_HOMES = {
    "Ad": "ad",
    "ERROR": "operators",
    "Expression": "ad",
    "Table": "table",
    "UNDEFINED": "operators",
    "clauses": "evaluation",
    "compiled": "compiling",
    "evaluate": "evaluation",
    "parse": "parsing",
    "parse_ad": "parsing",
    "references": "evaluation",
}

__all__ = [
    "ERROR",
    "UNDEFINED",
    "Ad",
    "Expression",
    "Table",
    "clauses",
    "compiled",
    "evaluate",
    "parse",
    "parse_ad",
    "references",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'bursar.classad' has no attribute {name!r}")
    value = getattr(import_module(f"bursar.classad.{home}"), name)
    globals()[name] = value
    return value
