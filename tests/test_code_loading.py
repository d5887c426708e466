"""Where code is loaded is written down in docs/concepts/security.md, all of it and nothing else."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.code_loading import Place, places

ROOT = Path(__file__).parent.parent
SOURCES = (
    ROOT / "src" / "bursar",
    ROOT / "packages" / "papers" / "src",
    ROOT / "packages" / "devtools" / "src",
    ROOT / "packages" / "snakemake" / "src",
)
SECURITY = ROOT / "docs" / "concepts" / "security.md"

_ROW = re.compile(r"^\| `([^`]+\.py)`: (?:`([^`]+)`|module) \| `([^`]+)` \|", re.MULTILINE)


def written() -> list[tuple[str, str, str]]:
    """File, function and what it uses, of each row in the document's tables."""
    return [(file, function, loads) for file, function, loads in _ROW.findall(SECURITY.read_text())]


def found() -> set[tuple[str, str, str]]:
    """The same, of the source."""
    return {
        (str(path.relative_to(source)), *place)
        for source in SOURCES
        for path in source.rglob("*.py")
        for place in places(path.read_text())
    }


def test_every_place_is_in_the_document_and_every_place_there_is_in_the_source() -> None:
    rows = written()
    assert len(rows) > 20
    assert len(rows) == len(set(rows))
    missing, gone = found() - set(rows), set(rows) - found()
    assert not missing, f"not in {SECURITY.name}: {sorted(missing)}"
    assert not gone, f"in {SECURITY.name}, and not in the source: {sorted(gone)}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import pickle\npickle.loads(b)", [("", "pickle.loads")]),
        ("import pickle as p\nf = p.loads", [("", "pickle.loads")]),
        ("from pickle import loads as quiet", [("", "pickle.loads")]),
        ("from pickle import Unpickler", [("", "pickle.Unpickler")]),
        ("import pickle\ngetattr(pickle, 'lo' + 'ads')(b)", [("", "pickle")]),
        ("import pickle\nx = pickle", [("", "pickle")]),
        ("import cloudpickle\ndef f():\n  cloudpickle.load(b)", [("f", "cloudpickle.load")]),
        (
            "class A:\n  async def f(self):\n    import dill\n    dill.loads(b)",
            [("A.f", "dill.loads")],
        ),
        ("import marshal, shelve\nshelve.open(x)", [("", "shelve.open")]),
        ("import runpy\nrunpy.run_path(x)", [("", "runpy.run_path")]),
        ("import yaml\nyaml.safe_load(x)", [("", "yaml.safe_load")]),
        ("from torch import load", [("", "torch.load")]),
        ("import joblib\njoblib.load(x)", [("", "joblib.load")]),
        (
            "import numpy\nnumpy.load(x, allow_pickle=True)",
            [("", "allow_pickle"), ("", "numpy.load")],
        ),
        ("eval(x); exec(y); __import__(z)", [("", "__import__"), ("", "eval"), ("", "exec")]),
        ("f = compile", [("", "compile")]),
        ("import builtins\nbuiltins.eval(x)", [("", "builtins.eval")]),
        ("import importlib\nimportlib.import_module(x)", [("", "importlib.import_module")]),
        (
            "from importlib import metadata\nmetadata.entry_points()",
            [("", "importlib.metadata.entry_points")],
        ),
        (
            "import importlib.util\nimportlib.util.module_from_spec(x)",
            [("", "importlib.util.module_from_spec")],
        ),
        ("spec.loader.exec_module(m)", [("", "spec.loader.exec_module")]),
        ("import ctypes\nctypes.CDLL(None)", [("", "ctypes.CDLL")]),
        ("base.enable_load_extension(True)", [("", "base.enable_load_extension")]),
        (
            "import logging.config\nlogging.config.dictConfig({})",
            [("", "logging.config.dictConfig")],
        ),
        ("import json\njson.loads(x)", [("", "json.loads")]),
        ("import pickle\npickle.dumps(x)", []),
        ("import re\nre.compile(x)\nself.compile(y)\nload = 3\nload + 1", []),
    ],
)
def test_what_is_found(source: str, expected: list[tuple[str, str]]) -> None:
    """However it is spelt; what only writes, or only has such a name, is not meant."""
    assert sorted(places(source)) == [Place(*one) for one in expected]


def test_commands_that_only_read_load_no_asyncio() -> None:
    """They begin sooner by a quarter: modules that are joined for other reasons bring it back."""
    program = (
        "import sys, bursar.cli.main, bursar.dispatch.journal; print('asyncio' in sys.modules)"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert said == "False\n"


def test_a_small_plan_loads_no_compiler(tmp_path: Path) -> None:
    """Plain Python answers sooner than code that was compiled before is loaded."""
    (tmp_path / "c.toml").write_text(
        '[campaign]\nname = "c"\ncommand = "sleep {seconds}"\n'
        '[parameters]\nseconds = [1, 2, 3, 4]\n[task]\nruntime = "{seconds}"\n'
    )
    (tmp_path / "s.toml").write_text(
        '[site.a]\nkind = "local"\nprocessors = 1\nunit_price = "0.04 EUR/core-hour"\n'
        '[site.b]\nkind = "local"\nprocessors = 4\nunit_price = "0.12 EUR/core-hour"\n'
    )
    program = (
        "import sys, bursar; quote = bursar.plan('c.toml', 's.toml'); "
        "print(quote.feasible, *(name in sys.modules for name in "
        "('numba', 'scipy', 'bursar.engine.dispatcher', 'bursar.broker.trading')))"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path
    ).stdout
    assert said == "True False False False False\n"
