"""A function is pickled once, and a call finds what it would find in a pickle of its own."""

import json
import os
import pickle
import sys
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import cloudpickle
import pytest

from bursar.api.call_encoding import CallEncoder
from bursar.worker.callee import SHARED, Callee

GLOBALS: dict[str, Any] = {"json": json, "number": 1, "items": [1]}


def made(text: str, name: str = "f") -> FunctionType:
    """Return a function as a program or a notebook defines it: to be pickled by value."""
    space = {**GLOBALS, "__name__": "__main__"}
    exec(text, space)
    function = space[name]
    assert isinstance(function, FunctionType)
    return function


def carried_out(payload: bytes) -> Any:
    """Return the value of a call, as a process for calls finds it."""
    callee = object.__new__(Callee)
    callee._functions = {}
    path = list(sys.path)
    try:
        succeeded, value = callee._carry_out(memoryview(payload), as_data=False)
    finally:
        sys.path[:] = path
    found = pickle.loads(value)
    if not succeeded:
        raise found
    return found


@pytest.mark.parametrize(
    ("text", "args", "value"),
    [
        ("def f(): return None", (), None),
        ("def f(a, *, b=2): return a + b", (1,), None),  # keyword defaults may change
        ("def f(a, b=2): return a + b", (1,), 3),
        ("def f(a): return json.dumps(a)", (1,), "1"),
        ("def g(a): return a + number\ndef f(a): return g(a) if a else f(a + 1)", (0,), 2),
        ("def f(a): return [number + b for b in range(a)]", (2,), [1, 2]),
        ("def made(n):\n def inner(): return n\n return inner\nf = made(5)", (), 5),
    ],
)
def test_calls_of_a_function_share_its_pickle(text: str, args: Any, value: Any) -> None:
    """Functions whose picture cannot change; the others are pickled for each call."""
    encoder = CallEncoder(shares=True)
    function = made(text)
    one, two = encoder.encode(function, args, {}), encoder.encode(function, args, {})
    assert one == two
    if value is not None or "*" not in text:
        assert one[:1] == SHARED
        assert carried_out(one) == value
    else:
        assert one[:1] != SHARED


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n global number\n number += 1\n return number",
        "def f():\n items.append(1)\n return len(items)",
        "def f(a=[]):\n a.append(1)\n return len(a) + 1",
        "def made():\n n = 1\n def inner():\n  nonlocal n\n  n += 1\n  return n\n return inner\n"
        "f = made()",
        "def f():\n globals()['number'] += 1\n return number",
        "def f():\n f.n = getattr(f, 'n', 1) + 1\n return f.n",
    ],
)
def test_a_function_that_could_remember_is_pickled_for_each_call(text: str) -> None:
    """Each call counts from one to two, as if it were the first."""
    encoder = CallEncoder(shares=True)
    function = made(text)
    for _ in range(3):
        payload = encoder.encode(function, (), {})
        assert payload[:1] != SHARED
        assert carried_out(payload) == 2


def test_what_has_changed_since_is_seen() -> None:
    """Variables, names defined later, helpers, defaults and code itself."""
    encoder = CallEncoder(shares=True)
    function = made("def g(): return 1\ndef f(a=1): return (number, a, g(), len('ab'))")

    def value() -> Any:
        return carried_out(encoder.encode(function, (), {}))

    space = function.__globals__
    assert value() == (1, 1, 1, 2)
    space["number"] = 2
    assert value() == (2, 1, 1, 2)
    function.__defaults__ = (3,)
    assert value() == (2, 3, 1, 2)
    space["g"].__code__ = made("def g(): return 4", "g").__code__
    assert value() == (2, 3, 4, 2)
    space["len"] = made("def g(a): return 5", "g")
    assert value() == (2, 3, 4, 5)
    function.__code__ = made("def f(a): return 6").__code__
    assert value() == 6


def test_the_module_path_of_the_moment_travels_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative entries are relative to the working directory at the time of the call."""
    encoder = CallEncoder(shares=True)
    function = made("import sys\ndef f(): return list(sys.path)")
    before = carried_out(encoder.encode(function, (), {}))
    monkeypatch.syspath_prepend("here")
    monkeypatch.chdir(tmp_path)
    assert carried_out(encoder.encode(function, (), {}))[0] == str(tmp_path / "here")
    os.mkdir("other")
    monkeypatch.chdir("other")
    assert carried_out(encoder.encode(function, (), {}))[0] == str(tmp_path / "other" / "here")
    assert str(tmp_path) not in before[0]


def test_a_module_that_is_registered_later_is_pickled_by_value() -> None:
    """As cloudpickle has it."""
    module = ModuleType("bursar_test_module")
    exec("def f(): return 1", module.__dict__)
    sys.modules[module.__name__] = module
    encoder = CallEncoder(shares=True)
    try:
        by_name = encoder.encode(module.f, (), {})
        assert encoder.encode(module.f, (), {}) == by_name
        cloudpickle.register_pickle_by_value(module)
        by_value = encoder.encode(module.f, (), {})
        cloudpickle.unregister_pickle_by_value(module)
    finally:
        del sys.modules[module.__name__]
    assert len(by_value) > len(by_name) + 50
    assert carried_out(by_value) == 1


def test_other_bursars_get_the_form_that_they_know() -> None:
    """One pickle of the module path and of the pickled call."""
    payload = CallEncoder(shares=False).encode(made("def f(a): return a"), (1,), {})
    _, call = pickle.loads(payload)
    function, args, kwargs = pickle.loads(call)
    assert function(*args, **kwargs) == 1
