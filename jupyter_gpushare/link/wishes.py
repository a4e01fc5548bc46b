"""Checks what people send over HTTP before it goes to a node manager. Pure.

The Jupyter server's REST interface, JupyterHub's, and the forms of its pages use these same rules;
the OpenAPI document states them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from jupyter_gpushare.protocol.calls import PARAMS
from jupyter_gpushare.protocol.messages import IDENTIFIER, LINE_PATTERN, NAME, TEXT, Method
from jupyter_gpushare.protocol.quota import read_field
from jupyter_gpushare.protocol.shapes import Range, shapes
from jupyter_gpushare.quota import FIELDS, Unit

from .errors import NodeProblem

TEXT_PATTERN: Final = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+$"
# No control characters, and no white space at either end.
NAME_PATTERN: Final = (
    r"^[^\s\x00-\x1f\x7f-\x9f]"
    r"([^\x00-\x1f\x7f-\x9f\u2028\u2029]*[^\s\x00-\x1f\x7f-\x9f])?$"
)
ID_PATTERN: Final = r"^[A-Za-z0-9._~-]{1,128}$"

#: The HTTP status of a reason; any other reason is the node manager's fault (502).
HTTP_STATUS: Final[Mapping[str, int]] = {
    "bad_request": 400,
    "not_allowed": 403,
    "unknown_lease": 404,
    "unknown_gpu": 404,
    "not_found": 404,
    "over_quota": 409,
    "zero_quota": 409,
    "too_large": 409,
    "no_resources": 409,
    "rate_limited": 429,
    "unsupported_protocol": 502,
    "unavailable": 503,
    "timed_out": 504,
}


@dataclass(frozen=True, slots=True)
class Form:
    """The form of a text, and the refusal of any other."""

    most: int
    pattern: str
    message: str
    reason: str = "bad_request"

    def read(self, text: object) -> str:
        """The text. Raises :class:`NodeProblem`."""
        told = isinstance(text, str) and len(text) <= self.most
        if not told or not re.fullmatch(self.pattern, str(text)):
            raise NodeProblem(self.reason, self.message)
        return str(text)


ENVIRONMENT: Final = Form(
    NAME,
    NAME_PATTERN,
    f"An environment's name has 1 to {NAME} characters, no control characters and no space around "
    "it.",
)
LEASE: Final = Form(IDENTIFIER, ID_PATTERN, "There is no such lease.", "unknown_lease")
GPU: Final = Form(
    IDENTIFIER, ID_PATTERN, "There is no such GPU: name it by its UUID.", "unknown_gpu"
)
_WHY: Final = "'reason' must be a text of 1 to {} characters, none of them control characters: {}."
WHY_REVOKED: Final = Form(TEXT, TEXT_PATTERN, _WHY.format(TEXT, "the lease's owner reads it"))
WHY_DRAINED: Final = Form(NAME, LINE_PATTERN, _WHY.format(NAME, "everybody who waits reads it"))


def bad_request(message: str) -> NodeProblem:
    """The refusal of input that makes no sense; the node manager is not asked."""
    return NodeProblem("bad_request", message)


def json_object(body: bytes, *known: str) -> dict[str, Any]:
    """Return the JSON object of a body, refusing anything but ``known`` keys."""
    try:
        read = json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"The body is not JSON ({error}).") from error
    if not isinstance(read, dict):
        raise bad_request("The body must be a JSON object.")
    if unknown := sorted(set(read) - set(known)):
        raise bad_request(
            f"Unknown key {unknown[0][:64]!r}; known are {', '.join(map(repr, known))}."
        )
    return read


def one_value(given: Mapping[str, Sequence[bytes]], name: str) -> str | None:
    """Return a query's argument, ``None`` when it is not given; twice is refused."""
    values = given.get(name, [])
    if len(values) > 1:
        raise bad_request(f"{name!r} is given {len(values)} times.")
    try:
        return values[0].decode("utf-8") if values else None
    except UnicodeDecodeError as error:
        raise bad_request(f"{name!r} is not UTF-8.") from error


def number(name: str, text: str | None, least: float, most: float) -> float | None:
    """Return a number of a query within bounds, ``None`` when it is not given."""
    if text is None:
        return None
    # Python's float() also takes "1_0", " 1", "nan" and Arabic digits. A double may be written
    # with more places than it has figures: 0.00012…
    if not re.fullmatch(r"-?[0-9]{1,16}(\.[0-9]{0,32})?([eE][+-]?[0-9]{1,3})?", text):
        raise bad_request(f"{name!r} must be a number, not {text[:64]!r}.")
    value = float(text)
    if not least <= value <= most:
        raise bad_request(f"{name!r} must be between {least:g} and {most:g}.")
    return value


def count(name: str, text: str | None, least: float, most: float) -> int | None:
    """Return a whole number of a query within bounds, ``None`` when it is not given."""
    value = number(name, text, least, most)
    if value is None:
        return None
    if not value.is_integer():
        raise bad_request(f"{name!r} must be a whole number.")
    return int(value)


def typed(kind: type, name: str, text: str | None) -> float | str | None:
    """Return what a query says of a call's parameter, by its declaration, or ``None``."""
    shape = shapes(kind)[name]
    if shape.kind is str:
        return None if text is None else (GPU if name == "gpu" else ENVIRONMENT).read(text)
    bounds = shape.mark(Range) or Range()
    if shape.kind is int:
        return count(name, text, *bounds)
    return number(name, text, *bounds)


def query(method: Method, given: Mapping[str, Sequence[bytes]]) -> dict[str, float | str | None]:
    """Return the parameters of a call as a query's arguments say them."""
    kind = PARAMS[method]
    return {name: typed(kind, name, one_value(given, name)) for name in shapes(kind)}


def quota_wish(body: Mapping[str, Any]) -> dict[str, Any]:
    """Turn a quota's JSON body into the protocol's parameters. Fields left out stay as they are."""
    named: dict[str, Any] = {}
    for name, given in body.items():
        if name == "follow":
            if not isinstance(given, list) or not all(part in FIELDS for part in given):
                raise bad_request(f"'follow' must be a list of some of {', '.join(FIELDS)}.")
            named[name] = given
            continue
        try:
            if FIELDS[name].unit is Unit.SECONDS and isinstance(given, str):
                raise ValueError("it must be seconds, not text.")
            named[name] = read_field(name, given)
        except ValueError as error:
            raise bad_request(f"'{name}': {error}") from error
    if not named:
        raise bad_request(f"say what to set, by one of {', '.join(FIELDS)}.")
    return named


def _reason(body: bytes, form: Form, *others: str) -> dict[str, Any]:
    said = json_object(body, "reason", *others)
    return {**said, "reason": form.read(said.get("reason"))}


#: The readers of the bodies, by OpenAPI's names; each returns a call's parameters.
BODIES: Final[Mapping[str, Callable[[bytes], dict[str, Any]]]] = {
    # The node manager checks the numbers.
    "Pin": lambda body: json_object(body, "seconds"),
    "Revoke": lambda body: _reason(body, WHY_REVOKED),
    "Drain": lambda body: _reason(body, WHY_DRAINED, "within"),
    "QuotaWish": lambda body: quota_wish(json_object(body, *FIELDS, "follow")),
}


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")
