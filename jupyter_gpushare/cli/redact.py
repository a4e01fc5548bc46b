"""Removes secrets and other people's data from texts for strangers. Pure.

It uses three filters, because each has gaps: names that say what is secret, texts that are known to
be secret or another person's, and long texts that look random. A removed text becomes a mark such
as ``<1f0c9a>``. The same text always gets the same mark, so that two places can still be compared.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Final, get_args, get_origin, get_type_hints, is_typeddict

from ..policy.words import events
from ..policy.words.model import EnvironmentName, Task
from ..protocol import documents
from ..protocol.shapes import Names, Private, shape, shapes

#: The value of a name with one of these words is secret.
_SECRET_NAME: Final = re.compile(
    r"token|secret|passw|passphrase|credential|cookie|auth|bearer|private|signature|api_?key|\bkey\b"
    r"|_key$|^key$",
    re.IGNORECASE,
)
#: Names that match and are no secret.
_HARMLESS: Final = frozenset({"token_file", "api_token_file", "host_admins"})
#: ``token=abc``, ``"password": "abc"``, ``Authorization: Bearer abc``, ``https://user:abc@host``.
_TOLD: Final = re.compile(
    r"(?i)((?:token|secret|passw\w*|passphrase|credential\w*|cookie|authorization|api_?key)\w*"
    r"[\"']?\s*[=:]\s*(?:bearer\s+|token\s+|basic\s+)?[\"']?)([^\s\"',;&}]+)"
)
_BEARER: Final = re.compile(r"(?i)\b((?:bearer|token|basic)\s+)([A-Za-z0-9._~+/=-]{8,})")
_IN_URL: Final = re.compile(r"(\w+://[^\s:/@]*:)([^\s@/]+)(@)")
#: The user in an address, with or without a password: ``https://user@host``.
_USER_IN_URL: Final = re.compile(r"(\w+://)([^\s:/@]+)((?::[^\s@/]*)?@)")
_RANDOM: Final = re.compile(r"[A-Za-z0-9_+-]{20,}={0,2}")
#: What a name is made of. Random letters change between small and capital ones at every second.
_WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_SHORT_WORDS: Final = 4.5
#: The person or the group in a line of the node manager's log, and in a label of its metrics.
_WHO: Final = re.compile(
    r"""(\b(?:environment|by|group)(?:=|"?: ?))("(?:[^"\\]|\\.)*"|'[^']*'|[^\s"',;}]+)"""
)
#: The owner of files, in a path.
_HOME: Final = re.compile(r"""(/(?:home|Users)/)([^/\s"':,;]+)""")
_GPU: Final = re.compile(r"(?:GPU|MIG)-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_NOTEBOOK: Final = re.compile(r"[^\n\"'=<>|]*\.ipynb\b")
#: Shorter known texts would also match unrelated words.
_SHORTEST: Final = 6


def mark(text: str) -> str:
    """The mark that replaces ``text``."""
    return f"<{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:6]}>"


def is_secret_name(name: str) -> bool:
    """Whether a value of this name is secret."""
    return name not in _HARMLESS and _SECRET_NAME.search(name) is not None


class Redactor:
    """Knows texts that are to be taken out, whole, wherever they stand."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._known: set[str] = set()
        self.learn(known)

    def learn(self, known: Iterable[str | None]) -> None:
        """More texts to take out."""
        self._known |= {text for text in known if text and len(text) >= _SHORTEST}

    def text(self, text: str) -> str:
        """``text`` without what must not be seen."""
        # The longest first: a path before the name that ends it.
        for known in sorted(self._known, key=len, reverse=True):
            text = text.replace(known, mark(known))
            # Also as it stands in JSON, with its escapes.
            text = text.replace(json.dumps(known)[1:-1], mark(known))
        for pattern in (_TOLD, _BEARER, _IN_URL):
            text = pattern.sub(
                lambda found: found[1] + _once(found[2]) + "".join(found.groups()[2:]), text
            )
        text = _USER_IN_URL.sub(lambda found: found[1] + _once(found[2]) + found[3], text)
        text = _NOTEBOOK.sub(lambda found: mark(found[0]), text)
        text = _HOME.sub(lambda found: found[1] + _once(found[2]), text)
        return _RANDOM.sub(_unless_harmless, text)

    def log(self, text: str, me: str | None) -> str:
        """Lines of a log, in which other people have no names."""

        def unnamed(found: re.Match[str]) -> str:
            quote, name = _unquoted(found[2])
            return found[0] if name == me else f"{found[1]}{quote}{_once(name)}{quote}"

        return self.text(_WHO.sub(unnamed, text))

    def value(self, name: str, value: Any) -> Any:
        """A setting's value, or what stands for it."""
        if is_secret_name(name) and value not in (None, "", 0, False):
            return mark(repr(value))
        if isinstance(value, Mapping):
            return {str(key): self.value(str(key), each) for key, each in value.items()}
        if isinstance(value, (list, tuple, set)):
            return [self.value(name, each) for each in value]
        return self.text(value) if isinstance(value, str) else value


def _unquoted(text: str) -> tuple[str, str]:
    """The quote around a name, if any, and the name without it."""
    if text[0] == '"':
        try:
            return '"', str(json.loads(text))
        except ValueError:
            return '"', text[1:-1]
    return ("'", text[1:-1]) if text[0] == "'" else ("", text)


def _once(text: str) -> str:
    # Several patterns may find the same text, and a mark of a mark would compare with nothing.
    return text if re.fullmatch(r"<[0-9a-f]{6}>", text) else mark(text)


def _unless_harmless(found: re.Match[str]) -> str:
    text = found[0]
    # One random text of 32 signs in some 250 has no digit; then its capitals tell.
    words = _WORD.findall(text)
    is_word = not any(letter.isdigit() for letter in text) and (
        text in (text.lower(), text.upper()) or sum(map(len, words)) >= _SHORT_WORDS * len(words)
    )
    return text if is_word or _GPU.fullmatch(text) else mark(text)


# -- configuration files -------------------------------------------------------------------------

#: The classes whose traits are of use; the rest of these files is left out.
SECTIONS: Final = frozenset(
    {"NodeManagerApp", "Quotas", "Hub", "Policy", "Connections", "GpuShareExtension", "GpuShare"}
    | {"GpuShareHub", "Application", "JupyterApp", "Checkpoints", "Parking"}
)
#: Traits whose keys, or members, are people, or groups of people.
_PEOPLE: Final = frozenset(
    {("Quotas", "users"), ("Quotas", "groups")}
    | {("NodeManagerApp", "admin_users"), ("NodeManagerApp", "admin_groups")}
)


def python_settings(source: str) -> Iterator[tuple[str, str, Any]]:
    """``c.Section.trait = value`` of a configuration file, which is read and not run.

    A value that is no literal is told as ``<an expression>``: what it is made of may be secret.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        yield "", "", f"cannot be read: {type(error).__name__}"
        return
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else []
        for target in targets:
            if not (isinstance(target, ast.Attribute) and isinstance(target.value, ast.Attribute)):
                continue
            section, trait = target.value.attr, target.attr
            if section in SECTIONS and isinstance(node, ast.Assign):
                yield section, trait, _literal(node.value)


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return "<an expression>"


def settings(
    found: Iterable[tuple[str, str, Any]], redactor: Redactor
) -> dict[str, dict[str, Any]]:
    """Settings by section, redacted, without people's names."""
    told: dict[str, dict[str, Any]] = {}
    for section, trait, value in found:
        if (section, trait) in _PEOPLE:
            if isinstance(value, Mapping):
                value = {mark(str(who)): each for who, each in value.items()}
            elif isinstance(value, (list, tuple)):
                value = [mark(str(who)) for who in value]
            else:
                value = "<an expression>"
        told.setdefault(section, {})[trait] = redactor.value(trait, value)
    return told


# -- what the node manager tells -----------------------------------------------------------------


def without_private(document: Any, kind: Any, me: str, learn: Callable[[str], object]) -> Any:
    """A document of this ``kind`` for strangers: what is private of others is ``None``.

    So are the names of one's own work, and fields that the type does not have. ``learn`` hears the
    names of others, which may stand elsewhere, too.
    """
    if get_origin(kind) is list:
        (part,) = get_args(kind)
        return [without_private(each, shape(part).kind, me, learn) for each in document]
    if not is_typeddict(kind):
        return document
    if not isinstance(document, Mapping):
        return None  # a fact in one line, which may name anything
    mine = document.get("mine")
    if not isinstance(mine, bool):  # a GPU's are bytes
        mine = document.get("environment") == me
    told: dict[str, Any] = dict.fromkeys(document)
    for name, declared in shapes(kind).items():
        if name not in document:
            continue
        value, private = document[name], declared.mark(Private)
        if private is None or (mine and private.names is not Names.WORK):
            told[name] = without_private(value, declared.kind, me, learn)
        elif not mine and private.names is not None and isinstance(value, str):
            learn(value)
    return told


def own_status(
    status: Mapping[str, Any], learn: Callable[[str], object] = lambda name: None
) -> dict[str, Any]:
    """A status without other people's names, and without names of notebooks and jobs."""
    return dict(without_private(status, documents.Status, status["environment"], learn))


def own_history(
    history: Mapping[str, Any], me: str, learn: Callable[[str], object] = lambda name: None
) -> dict[str, Any]:
    """The history; of other people's events only the kind.

    Nor is there the sentence of an event that has a word in it which somebody chose.
    """
    rows = []
    for event in history["events"]:
        whose, kind = event["environment"], event["kind"]
        others = whose not in (None, me)
        row = without_private({**event, "text": None}, documents.Event, me, learn)
        row["environment"] = mark(whose) if others else whose
        row["text"] = kind if others or _has_chosen_words(kind) else event["text"]
        rows.append(row)
    return {**history, "events": rows}


@cache
def _has_chosen_words(kind: str) -> bool:
    """Whether an event of this kind says what somebody is called, or called something."""
    event = getattr(events, kind, None)
    hints = get_type_hints(event) if isinstance(event, type) else {"": str}
    return any(_is_chosen(hint) for name, hint in hints.items() if name != "environment")


def _is_chosen(hint: Any) -> bool:
    return hint in (str, EnvironmentName, Task) or any(map(_is_chosen, get_args(hint)))
