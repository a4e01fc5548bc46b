"""What people send over HTTP, checked before it goes to a node manager. Pure.

The Jupyter server's REST interface, JupyterHub's, and the forms of its pages
read the same things by the same rules; the OpenAPI document tells them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from jupyter_gpushare.protocol.messages import LINE_PATTERN
from jupyter_gpushare.protocol.periods import parse_period
from jupyter_gpushare.protocol.sizes import parse_burst, parse_size

from . import openapi
from .errors import NodeProblem

#: The HTTP status of a reason; those that are not here are the node manager's fault (502).
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
    unknown = sorted(set(read) - set(known))
    if unknown:
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


def count(name: str, text: str | None, least: int, most: int) -> int | None:
    """Return a whole number of a query within bounds, ``None`` when it is not given."""
    value = number(name, text, least, most)
    if value is None:
        return None
    if not value.is_integer():
        raise bad_request(f"{name!r} must be a whole number.")
    return int(value)


def checked_name(text: str) -> str:
    """Return an environment's name, refusing empty, padded, over-long and unprintable ones."""
    if len(text) > openapi.LONGEST_NAME or not re.fullmatch(openapi.NAME_PATTERN, text):
        raise bad_request(
            f"An environment's name has 1 to {openapi.LONGEST_NAME} characters, no control "
            "characters and no space around it."
        )
    return text


def checked_lease(text: str) -> str:
    """Return a lease's id, or say that there is no such lease."""
    if not re.fullmatch(openapi.ID_PATTERN, text):
        raise NodeProblem("unknown_lease", "There is no such lease.")
    return text


def checked_reason(reason: object) -> str:
    """Return the words for the owner of a lease that is taken away."""
    most = openapi.LONGEST_REASON
    return _checked_text(reason, most, openapi.TEXT_PATTERN, "the lease's owner reads it")


def checked_drain_reason(reason: object) -> str:
    """Return the words for those who wait while a GPU is out of service."""
    most = openapi.LONGEST_DRAIN_REASON
    return _checked_text(reason, most, LINE_PATTERN, "everybody who waits reads it")


def _checked_text(reason: object, most: int, pattern: str, who: str) -> str:
    told = isinstance(reason, str) and len(reason) <= most
    if not told or not re.fullmatch(pattern, str(reason)):
        raise bad_request(
            f"'reason' must be a text of 1 to {most} characters, none of them control "
            f"characters: {who}."
        )
    return str(reason)


def checked_gpu(text: str) -> str:
    """Return a GPU's UUID, or say that there is no such GPU."""
    if not re.fullmatch(openapi.ID_PATTERN, text):
        raise NodeProblem("unknown_gpu", "There is no such GPU: name it by its UUID.")
    return text


def checked_pin(body: Mapping[str, Any]) -> float | None:
    """Return the seconds for which to keep an idle lease; ``None``: the usual time."""
    seconds = body.get("seconds")
    if seconds is None:
        return None
    wrong = isinstance(seconds, bool) or not isinstance(seconds, int | float)
    if wrong or not 0 <= seconds <= openapi.MOST_PIN:
        raise bad_request("'seconds' must be a number from 0; leave it out for the usual time.")
    return float(seconds)


QUOTA_KEYS: Final = ("gpus", "memory", "weight", "gpu_hours", "per", "idle_timeout", "burst_memory")


def quota_wish(body: Mapping[str, Any]) -> dict[str, Any]:
    """Turn a quota's JSON body into the protocol's parameters. What is left out stays as it is."""
    gpus = _whole(body.get("gpus"))
    if gpus is None or not 0 <= gpus <= openapi.MOST_GPUS:
        raise bad_request(f"'gpus' must be a whole number from 0 to {openapi.MOST_GPUS}.")
    readers: dict[str, Callable[[Any], Any]] = {
        "memory": _memory,
        "weight": _weight,
        "gpu_hours": _hours,
        "per": _per,
        "idle_timeout": _idle,
        "burst_memory": _burst,
    }
    named = {name: read(body[name]) for name, read in readers.items() if name in body}
    return {"gpus": gpus, **named}


def _memory(given: Any) -> int | None:
    if given is None:
        return None
    try:
        memory = parse_size(given) if isinstance(given, str) else _whole(given)
    except ValueError as error:
        raise bad_request(str(error)) from error
    if memory is None or not 1 <= memory <= openapi.MOST_MEMORY:
        raise bad_request("'memory' must be a positive size such as '8GiB' or bytes, or null.")
    return memory


def _weight(given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise bad_request("'weight' must be a number.")
    if not openapi.LEAST_WEIGHT <= given <= openapi.MOST_WEIGHT:
        raise bad_request(
            f"'weight' must be from {openapi.LEAST_WEIGHT:g} to {openapi.MOST_WEIGHT:g}."
        )
    return float(given)


def _hours(given: Any) -> float | None:
    what = "'gpu_hours' must be a number from 0, or null for no budget"
    return _number_or_null(given, openapi.MOST_GPU_HOURS, what)


def _per(given: Any) -> str | None:
    try:
        return None if given is None else parse_period(given)
    except ValueError as error:
        raise bad_request(f"'per': {error}") from error


def _idle(given: Any) -> float | None:
    what = "'idle_timeout' must be seconds from 0, which is never, or null for the node's own"
    return _number_or_null(given, openapi.MOST_IDLE, what)


def _number_or_null(given: Any, most: float, what: str) -> float | None:
    wrong = isinstance(given, bool) or not isinstance(given, int | float | None)
    if wrong or not 0 <= (given or 0) <= most:
        raise bad_request(f"{what}; leave it out to keep what there is.")
    return None if given is None else float(given)


def _burst(given: Any) -> float | None:
    if given is None:
        return None
    try:
        burst = parse_burst(given)
    except ValueError as error:
        raise bad_request(f"'burst_memory': {error}") from error
    if burst > openapi.MOST_MEMORY:
        raise bad_request("'burst_memory' is more than any GPU has.")
    return burst


def _whole(value: object) -> int | None:
    """Return a JSON number that is whole (``2.0`` is), ``None`` for anything else."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")
