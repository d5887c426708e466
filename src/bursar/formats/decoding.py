"""
Converts plain values of TOML to typed tables, and describes these by JSON Schemas (2020-12).

msgspec checks types, known keys and ranges; what several keys mean together is checked in
``__post_init__`` of the table. Here the first error of both becomes an :class:`InputError` whose
place is a path of keys (``tasks.align.inputs[0].size``).

They are generated from the tables that the readers decode, so that they cannot disagree. What no
schema can say (that a file exists, that a name refers to something) is left to the readers.
"""

import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from bursar.formats.file_text import joined
from bursar.formats.quantities import Schema, parse_quantity
from bursar.model.errors import InputError, spelling_hint

# Converts the plain values of a TOML document to typed tables; every error names a place.

T = TypeVar("T")

_LITERAL: Any = Literal


class TomlTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """
    Base of the tables of files: the fields are the known keys.

    Attributes
    ----------
    noun
        What a table of this kind describes, where its ``kind`` tells it from others.
    needed
        Messages for keys that are missing; others get a general one.
    refused
        Hints for keys that other kinds have and this one cannot have; others get a general one.
    kind_by_default
        Whether a table without a ``kind`` is of this kind.
    schema_rules
        What the fields' types do not say in the JSON Schema, such as keys that exclude each other.
    """

    noun: ClassVar[str] = ""
    needed: ClassVar[Mapping[str, str]] = {}
    refused: ClassVar[Mapping[str, str]] = {}
    kind_by_default: ClassVar[bool] = False
    schema_rules: ClassVar[Schema] = {}


def decode(raw: object, kind: type[T], place: str = "") -> T:
    """
    Decode a value of the document, or report the first error.

    Parameters
    ----------
    raw
        What the document holds.
    kind
        A table, or any type that msgspec knows.
    place
        Path of the value, for errors; empty for the document itself.

    Raises
    ------
    InputError
        At the path of the unknown, missing or wrong key.
    """
    try:
        # The value is looked at again only when something is wrong: places cost nothing where files
        # are right.
        return msgspec.convert(raw, kind, dec_hook=parse_quantity)
    except msgspec.ValidationError as error:
        raise _input_error(error, _PlacedValue(raw, kind, place)) from None
    except (OverflowError, ValueError) as error:
        raise InputError(str(error).splitlines()[0], where=place) from None


@dataclass(frozen=True, slots=True)
class _PlacedValue:
    """A value of the document with the expected type and the path."""

    raw: Any
    kind: Any
    place: str

    def structs(self) -> list[type[msgspec.Struct]]:
        """Return the possible table types; several when a key names the kind."""
        return [
            k for k in _options(self.kind) if isinstance(k, type) and issubclass(k, msgspec.Struct)
        ]

    def table(self) -> type[msgspec.Struct] | None:
        """Return the table type of the value, by the key of the kind where several are possible."""
        structs = self.structs()
        if len(structs) < 2:
            return structs[0] if structs else None
        found = self.raw.get(structs[0].__struct_config__.tag_field)
        return next((s for s in structs if s.__struct_config__.tag == found), None)

    def step(self, token: str) -> "_PlacedValue | None":
        """Return the value under a token of msgspec's path: ``.key``, ``[2]``, or ``[...]``."""
        if token == "[...]":
            return self._failing_entry()
        if token.startswith("["):
            i = int(token[1:-1])
            for option in _options(self.kind):
                arguments = get_args(option)
                if get_origin(option) in (list, frozenset):
                    return _PlacedValue(self.raw[i], arguments[0], joined(self.place, i))
                if get_origin(option) is tuple:
                    item = arguments[0] if arguments[-1] is ... else arguments[i]
                    return _PlacedValue(self.raw[i], item, joined(self.place, i))
            return None
        key = token[1:]
        for struct in self.structs():
            if key == struct.__struct_config__.tag_field:
                tags = tuple(s.__struct_config__.tag for s in self.structs())
                return _PlacedValue(self.raw.get(key), _LITERAL[tags], joined(self.place, key))
        for field in msgspec.structs.fields(self.table() or TomlTable):
            if field.encode_name == key:
                return _PlacedValue(self.raw[key], field.type, joined(self.place, key))
        return None

    def _failing_entry(self) -> "_PlacedValue | None":
        """
        Return the first entry of a dictionary whose value is wrong; None when there is none.

        It is searched for because an error of msgspec does not tell the key. None also when no
        dictionary is expected here.
        """
        for option in _options(self.kind):
            if get_origin(option) is dict:
                kind = get_args(option)[1]
                for key, value in self.raw.items():
                    try:
                        msgspec.convert(value, kind, dec_hook=parse_quantity)
                    except (msgspec.ValidationError, OverflowError, ValueError):
                        return _PlacedValue(value, kind, joined(self.place, key))
        return None


def _options(kind: Any) -> Iterator[Any]:
    """Yield the members of a union, stripped of annotations."""
    if get_origin(kind) is Annotated:
        yield from _options(get_args(kind)[0])
    elif get_origin(kind) in (Union, types.UnionType):
        for part in get_args(kind):
            yield from _options(part)
    else:
        yield kind


def _input_error(error: msgspec.ValidationError, whole: _PlacedValue) -> InputError:
    """Turn ``Expected `str`, got `int` - at `$.name` `` into a message at a field."""
    match = re.fullmatch(r"(.*?)(?: - at `(?:key in )?\$([^`]*)`)?", str(error), re.S)
    assert match is not None
    text, spot = match[1], whole
    for token in re.findall(r"\[(?:\d+|\.\.\.)\]|\.[^.\[]+", match[2] or ""):
        following = spot.step(token)
        if following is None:
            break
        spot = following
    cause = error.__cause__
    if isinstance(cause, InputError):
        where = ".".join(part for part in (spot.place, cause.where) if part)
        return InputError(cause.message, where=where, hint=cause.hint)
    if cause is not None:
        return InputError(str(cause).splitlines()[0], where=spot.place)
    missing = re.fullmatch(r"Object missing required field `(.*)`", text)
    if missing:
        return _missing_key(missing[1], spot)
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", text, re.S)
    if unknown:
        return _unknown_key(unknown[1], spot, whole)
    if text.startswith(("Invalid enum value", "Invalid value")):
        return _unknown_word(spot)
    text = re.sub(r"`([^`]*)`", lambda m: types_in_words(m[1]), text)
    return InputError(text[0].lower() + text[1:], where=spot.place)


def _missing_key(key: str, spot: _PlacedValue) -> InputError:
    structs = spot.structs()
    if len(structs) > 1 and key == structs[0].__struct_config__.tag_field:
        tags = _listed([str(s.__struct_config__.tag) for s in structs])
        return InputError(f"expected {tags}", where=joined(spot.place, key))
    words = getattr(spot.table(), "needed", {}).get(key)
    if words:
        return InputError(words, where=joined(spot.place, key))
    return InputError(f'expected a key "{key}"', where=spot.place)


def _unknown_key(key: str, spot: _PlacedValue, whole: _PlacedValue) -> InputError:
    """Say which tables have the key, or which key was probably meant."""
    table = spot.table()
    if table is None:
        return InputError("unknown key", where=joined(spot.place, key))
    where = joined(spot.place, key)
    structs = spot.structs()
    own = ""
    if len(structs) > 1:
        config = table.__struct_config__
        own = f'with {config.tag_field} = "{config.tag}"'
        owners = [s for s in structs if key in _keys(s)]
        if owners:
            value = spot.raw[key]
            if isinstance(value, list) and value and isinstance(value[0], dict):
                where = joined(where, 0)  # the line of its first table
            nouns = list(dict.fromkeys(getattr(s, "noun", "") for s in owners))
            if 2 * len(owners) > len(structs):
                message = f"does not go with {getattr(table, 'noun', '')}"
            else:
                message = f"goes with {' or '.join(nouns)} only, not {own}"
            tags = _listed([str(s.__struct_config__.tag) for s in owners])
            hint = getattr(table, "refused", {}).get(key, f"set {config.tag_field} = {tags}")
            return InputError(message, where=where, hint=hint)
    known = _keys(table)
    expected = ("one of " if len(known) > 1 else "") + ", ".join(known)
    return InputError(
        " ".join(word for word in ("unknown key", own) if word) + f", expected {expected}",
        where=where,
        hint=spelling_hint(key, known) or _owners_hint(key, spot, whole),
    )


def _owners_hint(key: str, spot: _PlacedValue, whole: _PlacedValue) -> str | None:
    """Name the tables of the document that have a key which stands in another one."""
    root = whole.table()
    if root is None or root is spot.table():
        return None
    parts = [
        (field.encode_name, option)
        for field in msgspec.structs.fields(root)
        for option in _options(field.type)
    ]
    owners = [
        f"[{name}]"
        for name, option in parts
        if isinstance(option, type) and issubclass(option, msgspec.Struct) and key in _keys(option)
    ]
    if owners:
        return f'"{key}" is a key of {" and ".join(owners)}'
    if isinstance(spot.raw[key], dict):  # [task.align] for [tasks.align]
        named = [name for name, option in parts if get_origin(option) is dict]
        return spelling_hint(spot.place, named)
    return None


def _keys(table: type[msgspec.Struct]) -> list[str]:
    tag_field = table.__struct_config__.tag_field
    return [*([tag_field] if tag_field else []), *table.__struct_encode_fields__]


def _unknown_word(spot: _PlacedValue) -> InputError:
    known = [word for part in _options(spot.kind) for word in get_args(part)]
    found = str(spot.raw)
    shown = "".join(c if c.isprintable() else "?" for c in found)[:60]
    return InputError(
        f'expected {_listed(known)}, got "{shown}"',
        where=spot.place,
        hint=spelling_hint(found, known),
    )


def _listed(words: list[str]) -> str:
    return " or ".join(f'"{word}"' for word in words)


_WORDS = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "list": "a list",
    "object": "a table",
    "dict": "a table",
    "date": "a date",
    "datetime": "a date",
    "time": "a time of day",
}


def types_in_words(types: str) -> str:
    """Return names of types, as msgspec writes them with bars between, in words for people."""
    words = [_WORDS.get(name, name) for name in types.split(" | ") if name != "null"]
    if "a number" in words and "a whole number" in words:
        words.remove("a whole number")
    return " or ".join(words)


# JSON Schemas (2020-12) of the files that Bursar reads.

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def file_schema(title: str, file: type[TomlTable], *others: type[TomlTable]) -> Schema:
    """
    Return the JSON Schema of the document that a file holds.

    Parameters
    ----------
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
