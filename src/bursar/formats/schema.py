"""
JSON Schemas (2020-12) of the files that Bursar reads.

They are generated from the tables that the readers decode, so that they cannot disagree. What no
schema can say (that a file exists, that a name refers to something) is left to the readers.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from bursar.formats.decoding import TomlTable
from bursar.formats.quantities import Schema

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def file_schema(title: str, file: type[TomlTable], *others: type[TomlTable]) -> Schema:
    """
    Return the JSON Schema of the document that a file holds.

    Parameters
    ----------
    title
        Title of the schema.
    file
        Table of the whole document.
    others
        Further tables, to which rules of the schema refer.
    """
    quantities: dict[str, Schema] = {}

    def refer(kind: Any) -> Schema:
        quantities[kind.__name__] = kind.schema
        return {"$ref": f"#/$defs/{kind.__name__}"}

    _, found = msgspec.json.schema_components(
        [file, *others], schema_hook=refer, ref_template="#/$defs/{name}"
    )
    tables = {name: _for_toml(schema) for name, schema in found.items()}
    for table in _subclasses(TomlTable):
        schema = tables.get(table.__name__)
        if schema is not None:
            _add(schema, table.schema_rules)
            if table.kind_by_default:
                schema["required"].remove(table.__struct_config__.tag_field)
    for schema in tables.values():
        schema.pop("title", None)
    document = tables.pop(file.__name__)
    return {
        "$schema": DIALECT,
        "title": title,
        **document,
        "$defs": dict(sorted((tables | quantities).items())),
    }


def _subclasses(table: type[TomlTable]) -> Iterator[type[TomlTable]]:
    for subclass in table.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def _for_toml(schema: Any) -> Any:
    """
    Return a schema without null, which TOML does not have, and without what only OpenAPI knows.
    """
    if isinstance(schema, list):
        return [_for_toml(part) for part in schema if part != {"type": "null"}]
    if not isinstance(schema, dict):
        return schema
    kept = {
        key: _for_toml(part)
        for key, part in schema.items()
        if not (key == "default" and part is None)
    }
    if kept.pop("discriminator", None):
        kept["oneOf"] = kept.pop("anyOf")
    if len(kept.get("anyOf", ())) == 1:
        (only,) = kept.pop("anyOf")
        kept = {**only, **kept}
    return kept


def _add(schema: Schema, rules: Schema) -> None:
    """Add rules to a schema in place: tables are merged, lists joined."""
    for key, rule in rules.items():
        old = schema.get(key)
        if isinstance(old, dict) and isinstance(rule, dict):
            _add(old, rule)
        else:
            schema[key] = [*old, *rule] if isinstance(old, list) else rule
