"""
JSON Schemas (2020-12) of the files Bursar reads.

Made from the very tables the readers decode, then made narrower where a
reader accepts less than its table's types say: the forms of quantities, what
a parameter may be, what excludes what. What no schema can say (that a file
exists, that names refer to something) is left to the readers.
"""

from typing import Any, get_args

import msgspec

from bursar.formats.axes import (
    NAME,
    RESERVED,
    CsvTable,
    FilesTable,
    RandomTable,
    RangeTable,
)
from bursar.formats.batch_table import PoolTable
from bursar.formats.link_table import LinkTable
from bursar.formats.pricing_table import PriceTable
from bursar.formats.sites_toml import SitesFile, SiteTable
from bursar.formats.slot_table import SlotTable
from bursar.formats.tables import (
    CampaignFile,
    CampaignTable,
    FileTable,
    GoalTable,
    InputTable,
    RetryTable,
    TaskTable,
)
from bursar.formats.units import DEAREST, LARGEST, LONGEST
from bursar.model.matching import CHOICES
from bursar.model.money import CURRENCY

DIALECT = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]

_NUMBER = r"(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?"
_CLOCK = r"(\d+-)?\d+:[0-5]\d(:[0-5]\d(\.\d+)?)?"
_TIME_UNIT = (
    "([sSmMhHdDwW]|[mM][sS]|[sS]ecs?|[sS]econds?|[mM]ins?|[mM]inutes?|[hH]rs?|[hH]ours?"
    "|[dD]ays?|[wW]eeks?)"
)
_SIZE_UNIT = r"([bB]|[bB]ytes?|[kKmMgGtTpP][iI]?[bB])?"
_HOLE = r"\{"  # a text with a {parameter} in it is judged when its value is known

_FILE_NAME: Schema = {"minLength": 1, "not": {"pattern": r"^/|(^|/)\.\.(/|$)"}}
"""Relative, never leaving its folder."""


def campaign_schema() -> Schema:
    """
    Schema of campaign files.

    Returns
    -------
    dict
        Describes the document a TOML file holds, as JSON.
    """
    defs = definitions(
        [
            CampaignFile,
            CampaignTable,
            TaskTable,
            FileTable,
            InputTable,
            GoalTable,
            RetryTable,
            RangeTable,
            FilesTable,
            CsvTable,
            RandomTable,
        ]
    )
    defs |= quantities()
    defs["Parameters"] = _parameters()
    defs["Command"] = {
        "anyOf": [
            {"type": "string", "pattern": r"\S"},
            {
                "type": "array",
                "items": {"type": "string"},
                "prefixItems": [{"type": "string", "minLength": 1}],
                "minItems": 1,
            },
        ]
    }
    for name, key, target in (
        ("CampaignTable", "command", "Command"),
        ("TaskTable", "command", "Command"),
        ("TaskTable", "parameters", "Parameters"),
        ("TaskTable", "processors", "Count"),
        ("TaskTable", "runtime", "TaskDuration"),
        ("TaskTable", "wall_limit", "TaskDuration"),
        ("TaskTable", "memory", "TaskSize"),
        ("FileTable", "size", "TaskSize"),
        ("InputTable", "size", "TaskSize"),
        ("GoalTable", "deadline", "Duration"),
        ("GoalTable", "budget", "Amount"),
        ("RetryTable", "backoff", "Duration"),
        ("RetryTable", "ceiling", "Duration"),
        ("CampaignFile", "campaign", "CampaignTable"),
        ("CampaignFile", "parameters", "Parameters"),
        ("CampaignFile", "goal", "GoalTable"),
        ("CampaignFile", "retry", "RetryTable"),
    ):
        refer(defs[name], key, target)
    _narrow_choices(defs)
    defs["CampaignFile"]["properties"]["task"] |= {
        "anyOf": [_ref("TaskTable"), {"type": "array", "items": _task_with_command()}]
    }
    defs["CampaignFile"]["properties"]["tasks"]["additionalProperties"] = _ref("TaskTable")
    defs["CampaignFile"]["properties"]["tasks"]["propertyNames"] = {"minLength": 1}
    return document("Bursar campaign", defs, "CampaignFile") | {"anyOf": _some_task()}


def sites_schema() -> Schema:
    """
    Schema of sites files.

    Returns
    -------
    dict
        Describes the document a TOML file holds, as JSON.
    """
    rules = get_args(PriceTable)
    defs = definitions([SitesFile, SiteTable, SlotTable, LinkTable, PoolTable, *rules])
    known = quantities()
    for name, key, target in (
        ("SiteTable", "unit_price", "Price"),
        ("SiteTable", "fixed_price", "Amount"),
        ("SiteTable", "memory", "Size"),
        ("SiteTable", "storage_limit", "Size"),
        ("SiteTable", "storage_rate", "Bandwidth"),
        ("SlotTable", "start", "Duration"),
        ("SlotTable", "duration", "Duration"),
        ("SlotTable", "unit_price", "Price"),
        ("SlotTable", "fixed_price", "Amount"),
        ("LinkTable", "latency", "Duration"),
        ("LinkTable", "bandwidth", "Bandwidth"),
        ("PoolTable", "shortest", "Duration"),
        ("PoolTable", "longest", "Duration"),
        ("PoolTable", "idle", "Duration"),
        ("PoolTable", "probe_every", "Duration"),
        ("SiteTable", "pool", "PoolTable"),
    ):
        refer(defs[name], key, target)
        if target in known:
            defs[target] = known[target]
    defs["SlotTable"]["properties"]["duration"]["exclusiveMinimum"] = 0
    defs["SlotTable"] |= {
        "if": {"required": ["leased"], "properties": {"leased": {"const": True}}},
        "then": {"properties": {"divisible": {"const": True}}},
    }
    defs["SiteTable"]["properties"]["slot"] |= {"items": _ref("SlotTable"), "minItems": 1}
    defs["SiteTable"] |= {
        "if": {"required": ["kind"], "properties": {"kind": {"const": "advertised"}}},
        "then": {"oneOf": [{"required": ["slot"]}, {"required": ["slots"]}]},
        "else": {"properties": {"slot": False, "slots": False}},
    }
    defs["SiteTable"]["properties"]["price"]["items"] = {
        "oneOf": [_ref(rule.__name__) for rule in rules]
    }
    defs["SitesFile"]["properties"]["link"]["items"] = _ref("LinkTable")
    sites = defs["SitesFile"]["properties"]["site"]
    sites["anyOf"] = [
        {
            "type": "object",
            "minProperties": 1,
            "propertyNames": {"minLength": 1},
            "additionalProperties": _ref("SiteTable") | {"not": {"required": ["name"]}},
        },
        {
            "type": "array",
            "minItems": 1,
            "items": _ref("SiteTable")
            | {"required": ["name"], "properties": {"name": {"minLength": 1}}},
        },
    ]
    defs["SitesFile"]["required"] = ["site"]
    return document("Bursar sites", defs, "SitesFile")


def definitions(kinds: list[type[msgspec.Struct]]) -> dict[str, Schema]:
    """Of tables and what they hold, by name."""
    _, found = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    return {name: _without_null(schema) for name, schema in found.items()}


def _without_null(schema: Any) -> Any:
    """The schema for TOML, which has no null: an absent key is just absent."""
    if isinstance(schema, list):
        return [_without_null(part) for part in schema if part != {"type": "null"}]
    if not isinstance(schema, dict):
        return schema
    kept = {
        key: _without_null(part)
        for key, part in schema.items()
        if not (key == "default" and part is None)
    }
    if len(kept.get("anyOf", ())) == 1:
        (only,) = kept.pop("anyOf")
        kept = {**only, **kept}
    return kept


def document(title: str, defs: dict[str, Schema], top: str) -> Schema:
    """The schema of a file whose document is one of the definitions."""
    document = defs.pop(top)
    document.pop("title", None)
    for schema in defs.values():
        schema.pop("title", None)
    return {"$schema": DIALECT, "title": title, **document, "$defs": dict(sorted(defs.items()))}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def refer(schema: Schema, key: str, target: str) -> None:
    """Lets a property be what a definition says, its description and default kept."""
    old = schema["properties"][key]
    kept = {word: old[word] for word in ("description", "default") if word in old}
    schema["properties"][key] = _ref(target) | kept


def quantities() -> dict[str, Schema]:
    """Definitions of what is written as a number or as text with a unit."""
    duration = rf"^\s*({_NUMBER}|{_CLOCK}|({_NUMBER}\s*{_TIME_UNIT}\s*)+)\s*$"
    size = rf"^\s*{_NUMBER}\s*{_SIZE_UNIT}\s*$"
    per = r"([cC]ore|[pP]rocessor|[cC][pP][uU])-(second|minute|hour|day)"
    return {
        "Duration": _quantity(
            'A time: seconds, "33m", "1h30m", "01:30:00" or "1-02:00:00".', duration, LONGEST
        ),
        "TaskDuration": _quantity(
            "A time, or text with a {parameter} that gives one.", f"{duration}|{_HOLE}", LONGEST
        ),
        "Size": _quantity('A size: bytes, "4 GB" (10^9) or "10 MiB" (2^20).', size, LARGEST),
        "TaskSize": _quantity(
            "A size, or text with a {parameter} that gives one.", f"{size}|{_HOLE}", LARGEST
        ),
        "Amount": _quantity(
            'Currency units: 126000 or "40 SU".',
            rf"^\s*{_NUMBER}\s*({CURRENCY})?\s*$",
            DEAREST,
        ),
        "Price": _quantity(
            '"0.05 EUR/core-hour", or a number per processor-second.',
            rf"^\s*{_NUMBER}\s*(({CURRENCY})?\s*/\s*{per})?\s*$",
            None,
        ),
        "Bandwidth": {
            "description": '"100 MB/s", "1 Gbit/s", or bytes per second.',
            "anyOf": [
                {
                    "type": "string",
                    "pattern": rf"^\s*{_NUMBER}\s*(([kKMGTP]i?)?(B|bit)\s*/\s*s)?\s*$",
                },
                {"type": "number", "exclusiveMinimum": 0},
            ],
        },
        "Count": {
            "description": "A whole number, or text with a {parameter} that gives one.",
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"type": "string", "pattern": rf"^\s*0*[1-9]\d*\s*$|{_HOLE}"},
            ],
        },
    }


def _quantity(description: str, pattern: str, most: float | None) -> Schema:
    number: Schema = {"type": "number", "minimum": 0}
    if most is not None:
        number["maximum"] = most
    return {
        "description": description,
        "anyOf": [{"type": "string", "pattern": pattern}, number],
    }


def _parameters() -> Schema:
    value = {"type": ["string", "number", "boolean"]}
    return {
        "description": "What each parameter goes through, and how they combine.",
        "type": "object",
        "propertyNames": {
            "pattern": f"^{NAME}$",
            "not": {"enum": [name for name in RESERVED if name != "combine"]},
        },
        "properties": {
            "combine": {
                "description": '"product" (every value with every other), "zip" (side by side), '
                'or an expression such as "a * (b, c)".',
                "type": "string",
                "default": "product",
            }
        },
        "additionalProperties": {
            "anyOf": [
                value,
                {"type": "array", "items": value, "minItems": 1},
                _ref("RangeTable"),
                _ref("FilesTable"),
                _ref("CsvTable"),
                _ref("RandomTable"),
            ]
        },
    }


def _narrow_choices(defs: dict[str, Schema]) -> None:
    """Keys that exclude or need each other."""
    defs["RangeTable"]["oneOf"] = [{"required": ["step"]}, {"required": ["points"]}]
    defs["RangeTable"]["properties"]["step"]["not"] = {"const": 0}
    defs["RangeTable"]["dependentSchemas"] = {
        "step": {"properties": {"spacing": {"const": "linear"}}}
    }
    defs["CsvTable"]["not"] = {"required": ["column", "columns"]}
    either = {
        "if": {"properties": {"random": {"const": "normal"}}},
        "then": {
            "required": ["mean", "deviation"],
            "properties": {"from": False, "to": False, "deviation": {"minimum": 0}},
        },
        "else": {"required": ["from", "to"], "properties": {"mean": False, "deviation": False}},
    }
    defs["RandomTable"] |= either
    defs["InputTable"]["oneOf"] = [
        {"required": ["name"], "properties": {"from": False, "files": False}},
        {
            "anyOf": [{"required": ["from"]}, {"required": ["files"]}],
            "properties": {"name": False, "size": False},
        },
    ]
    defs["TaskTable"]["properties"]["choice"]["enum"] = list(CHOICES)
    defs["TaskTable"]["not"] = {"required": ["over", "parameters"]}
    for table, key in (("TaskTable", "inputs"), ("TaskTable", "outputs")):
        first, *others = defs[table]["properties"][key]["items"]["anyOf"]
        defs[table]["properties"][key]["items"]["anyOf"] = [first | _FILE_NAME, *others]
    for table in ("FileTable", "InputTable"):
        defs[table]["properties"]["name"] |= _FILE_NAME
    defs["GoalTable"]["properties"]["on_budget"]["propertyNames"] = {
        "pattern": r"^\s*(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?\s*%?\s*$"
    }


def _task_with_command() -> Schema:
    return _ref("TaskTable") | {"required": ["command"]}


def _some_task() -> list[Schema]:
    """One command, or tasks; a table of tasks takes what it lacks from [task]."""
    command = {"required": ["command"]}
    return [
        {
            "required": ["campaign"],
            "properties": {
                "campaign": command,
                "task": {"type": "object", "not": command},
                "tasks": {"maxProperties": 0},
            },
        },
        {
            "properties": {"campaign": {"not": command}},
            "anyOf": [
                {"required": ["tasks"], "properties": {"tasks": {"minProperties": 1}}},
                {"required": ["task"], "properties": {"task": {"type": "array", "minItems": 1}}},
                {
                    "required": ["task"],
                    "properties": {"task": {"type": "object", "required": ["command"]}},
                },
            ],
        },
    ]
