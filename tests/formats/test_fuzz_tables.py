"""Whatever stands at any place of a TOML document, it decodes or is refused in one line."""

import copy
import datetime
from collections.abc import Iterator
from typing import Any

import pytest

from bursar.formats.decoding import TomlTable, decode
from bursar.formats.network_files import TopologyFile
from bursar.formats.sites_toml import SitesFile
from bursar.formats.tables import CampaignFile
from bursar.model.errors import InputError
from bursar.service.config_toml import ServiceFile

DOCUMENTS: dict[type[TomlTable], dict[str, Any]] = {
    ServiceFile: {
        "service": {"listen": "127.0.0.1:1", "names": ["a"], "scrapers": ["b"]},
        "site": {
            "kind": "slurm",
            "processors": 2,
            "unit_price": 1,
            "price": [{"kind": "bulk", "steps": [["1 core-hour", 0.5]]}],
            "pool": {"idle": 3},
            "attributes": {"a": 1},
        },
        "market": {"protocols": ["posted"], "credit": 3, "floor": "5%"},
        "users": {"ann": {"scopes": ["read"], "groups": ["x"], "limits": {"rate": 2}}},
        "tasks": {"directories": ["/x"], "limit": "2h"},
        "limits": {"tasks": {"instances": 3}, "requests": {"rate": 1}},
        "log": {"level": "info"},
    },
    SitesFile: {
        "site": {
            "a": {"kind": "local"},
            "b": {"kind": "advertised", "slot": [{"start": 0, "duration": 1, "processors": 1}]},
            "c": {"kind": "remote", "url": "https://x", "processors": 2, "seal": False},
            "d": {"kind": "dask", "scheduler": "tcp://x:1", "processors": 2},
        },
        "link": [{"from": "a", "to": "b", "bandwidth": "1 MB/s"}],
        "customer": {"groups": ["x"]},
    },
    CampaignFile: {
        "campaign": {"name": "c"},
        "parameters": {"x": [1]},
        "task": {"runtime": 1},
        "tasks": {
            "a": {
                "command": ["x"],
                "inputs": ["a", {"name": "b", "size": "{x}"}],
                "outputs": [{"name": "c"}],
                "environment": {"a": 1},
                "on_error": "fail",
                "register": {"a": "b"},
            }
        },
        "results": {"r": {"from": "c", "csv": 1, "row": "last"}},
        "goal": {"deadline": 1, "on_budget": {"5%": "stop"}},
        "retry": {"attempts": 2},
    },
    TopologyFile: {
        "node": {"a": {"router": True}},
        "link": [{"between": ["a", "b"], "bandwidth": 1, "profile": [0.5, "3%"], "step": 3}],
    },
}

ODD: list[Any] = [
    *(None, True, 3, -1, 1.5, float("nan"), float("inf"), "x", "", "é\n", "a`.b", 10**400),
    *([], [1], [[]], {}, {"a": 1}, {"": {}}, {"kind": 3}, {"a`]": [{}]}, {"odd.`key\n": 3}),
    *(datetime.date(2020, 1, 1), datetime.time(3)),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to every value of a document."""
    parts: Any = ()
    if isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, list):
        parts = enumerate(value)
    for key, part in parts:
        yield (*path, key)
        yield from places(part, (*path, key))


def refusal(document: dict[str, Any], file: type[TomlTable]) -> InputError | None:
    """Return the error, if there is one; any other exception fails the test."""
    try:
        decode(document, file)
    except InputError as error:
        return error
    return None


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: file.__name__)
def test_any_value_at_any_place_decodes_or_is_refused_there(file: type[TomlTable]) -> None:
    """The error begins with the section of the file that holds the value."""
    document = DOCUMENTS[file]
    decode(document, file)
    refused = 0
    for path in places(document):
        for odd in ODD:
            changed = copy.deepcopy(document)
            holder: Any = changed
            for key in path[:-1]:
                holder = holder[key]
            holder[path[-1]] = odd
            error = refusal(changed, file)
            if error is not None:
                refused += 1
                assert error.message, path
                assert (error.message + error.where).isprintable(), path
                assert error.where.split(".")[0].partition("[")[0] == path[0], (path, odd)
    assert refused > 100
