"""JSON Schemas of declared types: what stands in ``protocol/documents.py``, as OpenAPI has it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from math import isfinite
from types import NoneType, UnionType
from typing import (
    Any,
    Final,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from jupyter_gpushare.protocol.shapes import Period, Range, Text, Words, shape

Json = dict[str, Any]

_TYPES: Final = {str: "string", int: "integer", float: "number", bool: "boolean"}
#: A reader must accept words that a later release adds.
_PERIOD: Final[Json] = {
    "anyOf": [{"enum": ["week", "month", None]}, {"type": "string", "format": "date"}]
}


def components(named: Mapping[str, Any]) -> Json:
    """The schemas of ``named`` types; they refer to each other, and all others stand inside."""
    names = {kind: name for name, kind in named.items()}
    return {name: _Writer(names, whole=kind).of(kind) for name, kind in named.items()}


def reference(name: str) -> Json:
    """A component by its name."""
    return {"$ref": f"#/components/schemas/{name}"}


def fields(kind: Any) -> dict[str, Json]:
    """The schemas of a type's fields, with nothing named."""
    return {name: _Writer({}).of(hint) for name, hint in _hints(kind).items()}


def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


class _Writer:
    """Writes the schema of one type; ``whole`` is the one that is not replaced by its name."""

    def __init__(self, names: Mapping[Any, str], whole: Any = None) -> None:
        self._names, self._whole = names, whole

    def of(self, hint: Any) -> Json:
        if hint is not self._whole and (name := self._names.get(hint)) is not None:
            return reference(name)
        parts = get_args(hint)
        is_of_several = get_origin(hint) in (Union, UnionType) and NoneType not in parts
        if is_of_several and any(map(is_typeddict, parts)):
            return {"oneOf": [self.of(part) for part in parts]}
        one = shape(hint)
        if one.kind is not hint:
            schema = self.of(one.kind)
            schema = _or_null(schema) if one.null else schema
            return reduce(_said, one.said, schema)
        if get_origin(hint) in (list, tuple):
            return {"type": "array", "items": self.of(parts[0])}
        return {"type": _TYPES[hint]} if hint in _TYPES else self._object(hint)

    def _object(self, kind: Any) -> Json:
        hints = _hints(kind)
        needed = [name for name, hint in hints.items() if get_origin(hint) is not NotRequired]
        properties = {name: self.of(hint) for name, hint in hints.items()}
        return {"type": "object", "properties": properties, "required": needed}


def _or_null(schema: Json) -> Json:
    kind = schema.get("type")
    if kind in _TYPES.values():
        return {**schema, "type": [kind, "null"]}
    return {"anyOf": [schema, {"type": "null"}]}


def _said(schema: Json, said: object) -> Json:
    """``schema``, and what stands beside the type."""
    rest = {key: value for key, value in schema.items() if key != "type"}
    match said:
        case str():
            # Beside a reference nothing may stand in older readers of OpenAPI.
            inner = {"anyOf": [schema]} if "$ref" in schema else schema
            return {**inner, "description": said}
        case Words():
            null = [None] if "null" in schema["type"] else []
            return {**rest, "enum": [*said, *null]}
        case Period():
            return {**rest, **_PERIOD}
        case Range(least, most):
            bounds = {"minimum": least, "maximum": most}
            return {**schema, **{name: x for name, x in bounds.items() if isfinite(x)}}
        case Text(most, pattern):
            form = {"pattern": pattern} if pattern else {}
            return {**schema, "minLength": 1, "maxLength": most, **form}
        case _:
            return schema
