"""Write what pages say of the code and of measurements: nobody copies that by hand.

The pages under docs/generated/ and the tables of docs/protocol.md are made from the code, and the
tables of runs in docs/hardware/README.md, docs/faults.md and docs/security.md from their records. A
figure in the text of any other page is written between two marks, ``<!-- PAGE.md: ROW -->34 ms<!--
/ -->``: it comes from the second column of that row on a page of figures, with two digits.
``--check`` fails when one is stale.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import inspect
import json
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin, is_typeddict

HERE = Path(__file__).resolve().parent
OUT = HERE / "generated"
HARDWARE = HERE / "hardware"
MADE = "<!-- Made by `python docs/generate.py`; do not edit. -->\n\n"


def first_sentence(text: str | None) -> str:
    """The first sentence of a docstring, on one line."""
    paragraph = " ".join((text or "").strip().split("\n\n")[0].split())
    return paragraph.replace("|", "\\|").replace("``", "`")


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def states() -> str:
    """The tables of allowed moves as a diagram."""
    from jupyter_gpushare.policy.words.moves import CLAIM_MOVES, LEASE_MOVES
    from jupyter_gpushare.policy.words.promises import PROMISE_MOVES
    from jupyter_gpushare.policy.words.recalls import RECALL_MOVES
    from jupyter_gpushare.policy.words.turns import TURN_MOVES

    intro = (
        "# States of leases, claims, recalls, turns and promises\n\nA *lease* is what a task is "
        "entitled to; a *claim* is the physical fact about it on one GPU. A lease may have ended "
        "while its claim still drains. A *recall* is something that a task is asked to give; it is "
        "dropped from any state when it was given, or when nobody wants it any more. A *turn* is "
        "the right to compute on a GPU that is used by turns. A *promise* is the deadline or rate "
        "that a task was told it will keep.\n\n"
    )
    tables = {
        "lease": LEASE_MOVES,
        "claim": CLAIM_MOVES,
        "recall": RECALL_MOVES,
        "turn": TURN_MOVES,
        "promise": PROMISE_MOVES,
    }
    head, _, moves = _mermaid(tables).partition("\n")
    alt = (
        "    accTitle: The states of leases, claims, recalls, turns and promises\n"
        "    accDescr: One diagram for each; an arrow is an allowed move\n"
    )
    return f"{intro}```mermaid\n{head}\n{alt}{moves}```\n"


def _mermaid(tables: Mapping[str, Mapping[Any, frozenset[Any]]]) -> str:
    """Tables of moves as a Mermaid state diagram."""
    lines = ["stateDiagram-v2"]
    for title, table in tables.items():
        lines.append(f"    state {title} {{")
        for old, targets in table.items():
            lines += [
                f"        {title}_{old.value} --> {title}_{new.value}"
                for new in sorted(targets, key=lambda phase: str(phase.value))
            ]
        first = next(iter(table)).value
        lines += [f"        [*] --> {title}_{first}", "    }"]
    return "\n".join(lines) + "\n"


def errors() -> str:
    """The reasons of error answers."""
    from jupyter_gpushare.protocol import errors as codes

    rows = [(f"`{reason.value}`", codes.MEANING[reason]) for reason in codes.Reason]
    numbers = [
        (f"`{getattr(codes, name)}`", meaning)
        for name, meaning in (
            ("PARSE_ERROR", "The line is no JSON, or too long."),
            ("INVALID_REQUEST", "The JSON is no JSON-RPC 2.0 call, or may not come now."),
            ("METHOD_NOT_FOUND", "There is no such method."),
            ("INVALID_PARAMS", "A parameter is missing or has the wrong type or size."),
            ("INTERNAL_ERROR", "The node manager made a mistake; its log says more."),
            ("DOMAIN_ERROR", "One of the reasons above."),
        )
    ]
    return (
        "# Errors\n\nEach error answer has `data.reason` and, for a person, `data.message`.\n\n"
        + table(("reason", "meaning"), rows)
        + "\n"
        + table(("code", "meaning"), numbers)
    )


def events() -> str:
    """What the ledger keeps and what the Jupyter server tells."""
    from jupyter_gpushare.policy.words.described import OneOf
    from jupyter_gpushare.policy.words.events import EVENTS

    def each(title: str | OneOf[str]) -> list[str]:
        if isinstance(title, OneOf):
            several = (title.otherwise, *title.values.values())
            return [one for part in several for one in each(part)]
        return [title] if title else []

    rows = [
        (
            f"`{name}`",
            ", ".join(each(kind.ABOUT.title)) or kind.ABOUT.unlisted,
            "yes" if kind.DURABLE else "no",
            first_sentence(kind.__doc__),
        )
        for name, kind in EVENTS.items()
    ]
    return (
        "# Events\n\nThe policy's events. Durable ones are in the ledger before anybody is "
        "answered; the others are measured again after a restart.\n\n"
        + table(("event", "on pages", "durable", "meaning"), rows)
        + "\nThe Jupyter server emits `https://events.jupyter.org/jupyter_gpushare/lease/v1` "
        "for its own environment's leases; the schema is in "
        "`jupyter_gpushare/server/events/`.\n"
    )


def environment() -> str:
    """The environment variables."""
    from jupyter_gpushare.protocol import names

    told = {variable: about for _setting, variable, about in names.ASKS}
    for _setting, variable, default, words, about in names.SETTINGS:
        said = default if words and isinstance(default, str) else f"{default:g}"
        told[variable] = f"{about} Default: `{'on' if default is True else said}`."
    told |= names.MEANING
    found = [one for name, one in vars(names).items() if name.isupper() and isinstance(one, str)]
    if missing := sorted(set(found) - set(told)):
        raise SystemExit(f"protocol/names.py says nothing about {', '.join(missing)}")
    rows = [(f"`{variable}`", told[variable]) for variable in found]
    return "# Environment variables\n\n" + table(("variable", "meaning"), rows)


def configuration() -> str:
    """All traits."""
    from jupyter_gpushare.client.cell.magics import GpuShare
    from jupyter_gpushare.hub.app import GpuShareHub
    from jupyter_gpushare.node.app import NodeManagerApp
    from jupyter_gpushare.node.configuration import Connections, Hub, Policy, Quotas
    from jupyter_gpushare.pool.configuration import Pool
    from jupyter_gpushare.server.extension import GpuShareExtension

    parts = (
        (
            "Node manager: `jupyter_gpushare_node_config.py`",
            (NodeManagerApp, Quotas, Hub, Policy, Connections),
        ),
        ("Jupyter server: `jupyter_gpushare_config.py`", (GpuShareExtension,)),
        ("Kernels: `ipython_kernel_config.py`", (GpuShare,)),
        ("JupyterHub's pages: `jupyter_gpushare_hub_config.py`", (GpuShareHub,)),
        (
            "The pool of hosts: `jupyter_gpushare_pool_config.py`; where the Hub runs it, the file "
            "of the pages",
            (Pool,),
        ),
    )
    text = "# Configuration\n"
    for title, kinds in parts:
        text += f"\n## {title}\n"
        for kind in kinds:
            text += f"\n### c.{kind.__name__}\n\n{first_sentence(kind.__doc__)}\n\n"
            text += table(("trait", "default", "meaning"), list(_traits(kind)))
            text += _presets() if kind is NodeManagerApp else ""
    return text


def _presets() -> str:
    """What each preset of the node manager sets."""
    from jupyter_gpushare.node.settings.presets import CHOSEN, PRESETS

    rows = [
        (
            f"`c.{one.name}`",
            *("not set" if value is None else f"`{value!r}`" for value in one.values),
            one.why,
        )
        for one in CHOSEN
    ]
    return (
        "\n### Presets\n\n`c.NodeManagerApp.preset` (or `--preset`) chooses a value for each of "
        "these settings. What the configuration sets itself goes before it. `jupyter "
        "gpushare status` and `jupyter gpushare doctor` say which preset holds, and what is set "
        "otherwise.\n\n"
        + "".join(f"- `{name}`: {about}\n" for name, about in PRESETS.items())
        + "\n"
        + table(("setting", *(f"`{name}`" for name in PRESETS), "why"), rows)
    )


def _traits(kind: Any) -> Iterable[tuple[str, str, str]]:
    own = kind.class_own_traits(config=True)
    for name, trait in sorted(own.items()):
        default = trait.default_value_repr()
        shown = "" if len(default) > 60 or "/" in default else f"`{default}`"
        yield f"`{name}`", shown, first_sentence(textwrap.dedent(trait.help))


def metrics() -> str:
    """Prometheus metrics, read off a running registry."""
    from prometheus_client import CollectorRegistry

    from jupyter_gpushare.node.views.metrics import NodeMetrics
    from jupyter_gpushare.policy.books.state import State
    from jupyter_gpushare.pool.metrics import PoolMetrics
    from jupyter_gpushare.pool.state import State as PoolState

    class Quiet:
        """As much of a manager as the collector reads."""

        state = State()
        listeners: list[Any] = []  # noqa: RUF012 - thrown away
        walls = None

        class config:
            parked_memory = 0

        class readings:
            by_gpu: dict[str, Any] = {}  # noqa: RUF012
            at = 0.0

        class clock:
            @staticmethod
            def boot() -> float:
                return 0.0

    class Shut:
        """As much of a transport."""

        refusals: dict[Any, int] = {}  # noqa: RUF012
        open_connections = 0

    registry = CollectorRegistry()
    NodeMetrics(Quiet(), Shut(), registry, 1)  # type: ignore[arg-type]
    pool = PoolMetrics(PoolState).registry
    heads = ("metric", "type", "meaning")
    return (
        "# Metrics\n\nOf a standalone node manager with `--metrics-port`. Names of people are in "
        "no label, but for `jupyter_gpushare_environment_…`, which are there only where "
        "`c.NodeManagerApp.metrics_environments` says for how many. The Jupyter server adds ours "
        "to its own `/metrics`.\n\n"
        + table(heads, _metric_rows(registry))
        + "\n## Of a pool\n\nOf the pool of several hosts with `c.Pool.metrics_port`, alone or in "
        "the Hub's service. No person is named.\n\n" + table(heads, _metric_rows(pool))
    )


def _metric_rows(registry: Any) -> list[tuple[str, str, str]]:
    return sorted(
        (f"`{family.name}{'_total' if family.type == 'counter' else ''}`", family.type,
         family.documentation)
        for family in registry.collect()
    )  # fmt: skip


def openapi() -> str:
    """The REST interface, for programs; the lab extension's types are made from it."""
    from jupyter_gpushare.link.openapi import document

    return json.dumps(document(), indent=1, sort_keys=True) + "\n"


def protocol() -> str:
    """The page about the protocol, with what its calls may say, and the status document."""
    from jupyter_gpushare.node.wire.translate import ADMIN_ONLY, NODES_OWN, POOL_ONLY
    from jupyter_gpushare.protocol.calls import PARAMS
    from jupyter_gpushare.protocol.documents import NOTICES, RESULTS

    begin, end = "<!-- made: the status document -->\n", "<!-- end -->"
    text, _, rest = (HERE / "protocol.md").read_text("utf-8").partition(begin)
    for method, kind in PARAMS.items():
        who = ["(administrator)"] if method in ADMIN_ONLY else []
        who = ["(pool)"] if method in POOL_ONLY else who
        who = ["(administrator, pool)"] if method in NODES_OWN else who
        said = " ".join([*who, ", ".join(parameters(kind))]).strip()
        row = re.compile(rf"^\| `{re.escape(method.value)}` \|.*?\|", re.MULTILINE)
        text, found = row.subn(lambda _, m=method, s=said: f"| `{m.value}` | {s} |", text)
        if found != 1:
            raise SystemExit(f"docs/protocol.md has {found} rows for `{method.value}`")
    for method, kind in RESULTS.items():
        row = re.compile(rf"^(\| `{re.escape(method.value)}` \|[^|]*\| )`[^`]*`", re.MULTILINE)
        said = _names(kind)
        text, found = row.subn(lambda m, s=said: f"{m[1]}`{s}`", text)
        if found != 1:
            raise SystemExit(f"docs/protocol.md does not say what `{method.value}` answers")
    for notice, kind in NOTICES.items():
        # In a span of code, which may be on two lines.
        span = re.compile(rf"`{notice.value} \{{[^`]*\}}`")
        text, found = span.subn(f"`{notice.value} {{{_names(kind)}}}`", text)
        if found != 1:
            raise SystemExit(f"docs/protocol.md tells {found} times what `{notice.value}` says")
    return f"{text}{begin}{status()}{end}{rest.partition(end)[2]}"


#: Parts with more fields than this are named only.
_SMALL = 4


def _names(kind: Any) -> str:
    """The names of an object's fields, with those of list rows and small parts; ``?``: perhaps."""
    from jupyter_gpushare.protocol.shapes import shapes

    parts = []
    for name, shape in shapes(kind).items():
        row = _part(shape) if get_origin(shape.kind) in (list, tuple) else None
        inner = f": [{{{_names(row)}}}]" if _is_object(row) else ""
        if _is_object(shape.kind) and len(shape.kind.__annotations__) <= _SMALL:
            inner = f": {{{_names(shape.kind)}}}"
        perhaps = "?" if name in getattr(kind, "__optional_keys__", ()) else ""
        parts.append(f"{name}{perhaps}{inner}")
    return ", ".join(parts)


def parameters(kind: Any) -> Iterable[str]:
    """A call's parameters with their bounds, in words; ``?``: it may be left out."""
    from jupyter_gpushare.protocol.calls import QuotaFields
    from jupyter_gpushare.protocol.shapes import Inside, shapes

    defaults = {one.name: one.default for one in dataclasses.fields(kind)}
    for name, shape in shapes(kind).items():
        if shape.mark(Inside) is not None:
            yield "`environment`, or `group`, or `default: true`"
            continue
        default = defaults[name]
        optional = shape.null or default is not dataclasses.MISSING
        part = get_args(shape.kind)[0] if get_origin(shape.kind) is tuple else shape.kind
        inner = ", ".join(parameters(part)) if dataclasses.is_dataclass(part) else ""
        inner = "" if part is QuotaFields else inner  # in the row of `quota.set`
        around = f": {{{inner}}}" if inner else ""
        if part is not shape.kind:
            around = f": [{{{inner}}}]" if inner else ": [texts]"
        told = "; ".join(told_of(shape, default))
        yield f"`{name}{'?' if optional else ''}`{around}" + (f" ({told})" if told else "")


def told_of(shape: Any, default: Any) -> Iterable[str]:
    """What stands beside a parameter's type, in words."""
    from jupyter_gpushare.protocol.messages import IDENTIFIER
    from jupyter_gpushare.protocol.shapes import Range, Text, Words

    words, bounds, text = shape.mark(Words), shape.mark(Range), shape.mark(Text)
    if words is not None:
        yield ", ".join(f"`{word}`" for word in words)
    if bounds is not None and bounds.most < 2**53:
        yield f"{bounds.least:g} to {bounds.most:,.16g}"
    if text is not None and text.most != IDENTIFIER:
        yield f"at most {text.most:,} characters"
    if (about := shape.mark(str)) is not None:
        yield about
    if isinstance(default, str | int | float) and not isinstance(default, enum.Enum):
        said = f"{default:g}" if isinstance(default, float) else json.dumps(default).strip('"')
        yield f"left out: `{said}`" if said else "left out: nothing"


_WORDS = {str: "text", int: "whole number", float: "number", bool: "true or false"}


def status() -> str:
    """The fields of the status document, a table a part."""
    from jupyter_gpushare.protocol.documents import Status
    from jupyter_gpushare.protocol.shapes import shapes

    told: dict[Any, str] = {}
    parts = []
    for name, shape in shapes(Status).items():
        about = shape.mark(str)
        parts.append(f"\n`{name}`" + (f": {about}\n" if about else "\n"))
        rows = list(_rows(_part(shape), "", name, told))
        parts += ["\n" + table(("field", "is", "meaning"), rows)] if rows else []
    return "".join(parts) + "\n"


def _is_object(kind: Any) -> bool:
    return is_typeddict(kind) or dataclasses.is_dataclass(kind)


def _part(shape: Any) -> Any:
    from jupyter_gpushare.protocol.shapes import shape as taken_apart

    listed = get_origin(shape.kind) in (list, tuple)
    return taken_apart(get_args(shape.kind)[0]).kind if listed else shape.kind


def _rows(kind: Any, prefix: str, path: str, told: dict[Any, str]) -> Iterable[tuple[str, ...]]:
    """A row a field; the fields of an object in it follow it, unless they were ``told`` before."""
    from jupyter_gpushare.protocol.shapes import Private, Words, shapes

    if not _is_object(kind):
        return
    told[kind] = path
    for name, shape in shapes(kind).items():
        part, words = _part(shape), shape.mark(Words)
        what = ", ".join(f"`{word}`" for word in words) if words else _WORDS.get(part, "object")
        listed = "list of: " if get_origin(shape.kind) is list else ""
        about = [shape.mark(str) or ""]
        if shape.null and shape.mark(Private) is not None and "null:" not in about[0]:
            about.append("null: another's")
        before = told.get(part)
        about += [f"as in `{before}`"] if before else []
        null = " or null" if shape.null else ""
        said = "; ".join(filter(None, about))
        yield f"`{prefix}{name}`", f"{listed}{what}{null}", said
        if not before:
            yield from _rows(part, f"{prefix}{name}.", f"{path}.{name}", told)


# -- the command line, the magics and REST ---------------------------------------------------------


def command_line() -> str:
    """Every verb, as the command line itself reads it."""
    from jupyter_gpushare.cli.app import GpuShareApp, load
    from jupyter_gpushare.console.verb import EXIT_CODES, Verb

    def verbs(kind: Any, words: str, about: str = "") -> Iterable[tuple[Any, str, str]]:
        yield kind, words, about
        if issubclass(kind, Verb):
            for word, (_, said) in kind.subcommands.items():
                yield from verbs(load(kind, word), f"{words} {word}", said)

    root, *rest = verbs(GpuShareApp, "jupyter gpushare")
    rows = [(f"[`{words}`](#{words.replace(' ', '-')})", about) for _, words, about in rest]
    text = (
        "# Command line\n\n`jupyter gpushare VERB --help` says the same as this page. "
        f"{EXIT_CODES} `run` ends with its command's exit code.\n\n"
        f"{table(('verb', 'what it does'), rows)}\n## Options of every verb\n\n"
        f"{table(_OPTION, [*_OF_ALL, *_options(root[0])])}"
    )
    for kind, words, _ in rest:
        ours = issubclass(kind, Verb)
        app = kind if ours else kind()
        usage = f"{words} [options] {getattr(app, 'arguments', '')}".rstrip()
        about = first_sentence(inspect.getdoc(app) or "" if ours else app.description)
        text += f"\n## {words}\n\n{about}\n\n```\n{usage}\n```\n"
        own = _options(app, root[0].options()) if ours else _switches(app)
        if listed := list(own):
            text += f"\n{table(_OPTION, listed)}"
        if app.examples:
            text += f"\n```text\n{textwrap.dedent(app.examples).strip()}\n```\n"
    return text


def quota_fields() -> str:
    """Every field of a quota, as each place reads it."""
    from jupyter_gpushare.protocol.quota import about
    from jupyter_gpushare.quota import FIELDS

    rows = [
        (
            f"`{name}`",
            field.label,
            about(name),
            f"`{field.null}`" if field.null else "",
            first_sentence(field.merge.__doc__),
        )
        for name, field in FIELDS.items()
    ]
    return (
        "# The fields of a quota\n\nThe configuration, REST and the command line call them so (an "
        "option has `-` for `_`), and the pages by their label. The word for none is for the "
        "command line; REST and the configuration write `null` or `None`. The last column says "
        "what holds for a person in several groups; the period is that of the budget that holds."
        "\n\n"
        f"{table(('field', 'label', 'meaning', 'word for none', 'of several groups'), rows)}"
    )


_OPTION = ("option", "default", "meaning")
#: What argparse and traitlets add by themselves.
_OF_ALL = [
    ("`--help`", "", "Say what the verb does."),
    ("`--version`", "", "Say which release this is."),
]


def _options(kind: Any, known: Iterable[str] = ()) -> Iterable[tuple[str, str, str]]:
    """A row an option of a verb; those that are ``known`` are left out."""
    for name, option in kind.options().items():
        if name in known:
            continue
        if option.read is None:
            yield f"`--{name}`", "", option.help
            continue
        plain = isinstance(option.default, (int, float)) and f"{option.default:.12g}"
        shown = f"`{plain or option.default}`" if option.default not in (None, "", ()) else ""
        either = f" One of {', '.join(f'`{one}`' for one in option.choices)}." * bool(
            option.choices
        )
        where = f" Not given: `{option.variable}`." if option.variable else ""
        yield f"`--{name}=…`", shown, option.help + either + where


def _switches(app: Any) -> Iterable[tuple[str, str, str]]:
    """A row a flag of an application of traitlets, and one an option with a value."""
    for name, (_traits_set, about) in app.flags.items():
        dashes = "-" if len(name) == 1 else "--"
        yield f"`{dashes}{name}`", "", first_sentence(about)
    for name, target in app.aliases.items():
        of, _, trait_name = target.partition(".")
        homes = {kind.__name__: kind for kind in (*app.classes, *type(app).__mro__)}
        trait = homes[of].class_traits()[trait_name]
        default = trait.default_value_repr()
        nothing = default in ("None", "''", "[]") or "/" in default
        shown = "" if nothing else f"`{default}`"
        words = getattr(trait, "values", None)
        either = f" One of {', '.join(f'`{one}`' for one in words)}." if words else ""
        about = first_sentence(textwrap.dedent(trait.help)) + either
        yield f"`--{name}=…`", shown, about


def magics() -> str:
    """The magics, with the words of ``%gpushare help``."""
    from jupyter_gpushare.client.cell.magics import VERB_OPTIONS
    from jupyter_gpushare.client.words.render import _HELP_NOTES, HELP

    told = {words.split()[1] for words, _ in HELP if words.startswith("%gpushare ")}
    if missing := set(VERB_OPTIONS) - told:
        raise SystemExit(f"%gpushare help says nothing about {', '.join(sorted(missing))}")
    rows = [(f"`{words}`", f"{about[0].upper()}{about[1:]}.") for words, about in HELP]
    options = [
        (f"`%gpushare {verb}`", ", ".join(f"`{option}`" for option in takes))
        for verb, takes in VERB_OPTIONS.items()
        if takes
    ]
    return (
        "# Magics\n\nThe package's IPython extension brings them to every kernel. `%gpushare help` "
        "shows this table in a notebook; Tab completes verbs and options.\n\n"
        + table(("magic", "what it does"), rows)
        + "\nWhat each one takes:\n\n"
        + table(("magic", "takes"), options)
        + "\n"
        + "\n\n".join(_HELP_NOTES)
        + "\n\nWhat they do in detail is in [get a GPU in a notebook](../how-to/get-a-gpu.md); the "
        "settings of a kernel are [`c.GpuShare`](configuration.md#cgpushare).\n"
    )


def rest() -> str:
    """The OpenAPI document, for people."""
    from jupyter_gpushare.link.openapi import document

    whole = document()
    shapes = whole["components"]["schemas"]
    below = "/gpushare/api/"
    calls, trouble = [], {}
    for path, item in sorted(whole["paths"].items()):
        for method in ("get", "put", "post", "delete"):
            if method not in item:
                continue
            call = item[method]
            for code, answer in call["responses"].items():
                if code >= "400":
                    trouble[code] = answer["description"]
            given = [*item.get("parameters", ()), *call.get("parameters", ())]
            calls.append((f"{method.upper()} {path.removeprefix(below)}", call, given))
    text = (
        f"# REST\n\n{whole['info']['description']}\n\n"
        f"The paths are below `{below}` of a Jupyter server's base URL. A program shows the "
        "server's token in the header `Authorization: token …`. Sizes are bytes, times seconds. "
        "[The document itself](openapi.json) is OpenAPI.\n\n## Calls\n\n"
    )
    text += table(("call", "what it does"), ((f"`{n}`", c["summary"]) for n, c, _ in calls))
    text += "\n"
    for name, call, given in calls:
        text += f"### `{name}`\n\n{call['summary']}\n\n"
        if given:
            rows = ((f"`{p['name']}`", p["in"], *_value(p["schema"], p)) for p in given)
            text += table(("parameter", "in", "is", "meaning"), rows) + "\n"
        if body := call.get("requestBody"):
            text += f"Body: {_of_content(body)}. "
        answers = [
            f"{code} with {_of_content(answer)}" if answer.get("content") else str(code)
            for code, answer in call["responses"].items()
            if code < "400"
        ]
        errors = ", ".join(code for code in sorted(call["responses"]) if code >= "400")
        text += f"Answer: {', '.join(answers)}. Errors: {errors}.\n\n"
    text += "## Errors of the calls\n\nEach has an [Error](#error) as its body.\n\n"
    text += table(("status", "meaning"), sorted(trouble.items())) + "\n## Objects\n\n"
    text += "A `?` behind a field's name: it may be left out.\n"
    for name, schema in sorted(shapes.items()):
        text += f"\n### {name}\n\n"
        about = schema.get("description")
        text += f"{first_sentence(about)}\n\n" if about else ""
        rows = list(_fields(schema, ""))
        text += table(("field", "is", "meaning"), rows) if rows else f"{_is(schema)}.\n"
    return text


def _of_content(part: Any) -> str:
    return " or ".join(
        _is(one["schema"]) if kind == "application/json" else f"`{kind}`"
        for kind, one in part["content"].items()
    )


def _fields(schema: Any, prefix: str) -> Iterable[tuple[str, str, str]]:
    """A row a field of an object; those of an object in it follow it."""
    for name, part in sorted(schema.get("properties", {}).items()):
        perhaps = "" if name in schema.get("required", ()) else "?"
        yield f"`{prefix}{name}{perhaps}`", *_value(part, part)
        for inner in (part, part.get("items", {}), *part.get("anyOf", ())):
            yield from _fields(inner, f"{prefix}{name}.")


def _value(schema: Any, told: Any) -> tuple[str, str]:
    """What a value is, and what it means with its bounds."""
    least, most = schema.get("minimum"), schema.get("maximum")
    said = [first_sentence(told.get("description"))] if told.get("description") else []
    if most is not None and most < 2**53:
        said.append(f"{least:g} to {most:,.16g}")
    if "default" in schema:
        said.append(f"left out: `{schema['default']}`")
    return _is(schema), "; ".join(said)


_JSON = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "object": "object",
    "null": "null",
}


def _is(schema: Any) -> str:
    """The kind of a value in words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(one)}`" for one in schema["enum"])
    if either := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(_is(one) for one in either))
    kinds = schema.get("type", "object")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    listed = f"list of: {_is(schema['items'])}" if "array" in kinds else ""
    return " or ".join(listed if kind == "array" else _JSON[kind] for kind in kinds)


# -- figures ---------------------------------------------------------------------------------------

FIGURE = re.compile(r"(<!-- ([\w-]+\.md): ([^>]+) -->)[^<]*(<!-- / -->)")


def figures(text: str) -> str:
    """A page's text with its marked figures as the pages of figures have them now."""
    if begins := re.search(r"^\W*<!-- [\w-]+\.md: .*", text, re.MULTILINE):
        raise SystemExit(f"A line that begins with a mark is taken for HTML: {begins[0]}")
    return FIGURE.sub(lambda mark: f"{mark[1]}{_figure(mark[2], mark[3])}{mark[4]}", text)


def _figure(page: str, row: str) -> str:
    found = re.search(
        rf"^\| {re.escape(row)} \| \**([\d.]+)\**([^|]*?) \|",
        (HERE / page).read_text("utf-8"),
        re.MULTILINE,
    )
    if found is None:
        raise SystemExit(f"docs/{page} has no row {row!r} with a figure")
    value = float(f"{float(found[1]):.2g}")
    return f"{value:g}{found[2]}"


def hardware() -> str:
    """The page about real GPUs, with a row for each record that is there."""
    rows = []
    for path in sorted(HARDWARE.glob("*.json"), key=lambda path: _record(path)["date"]):
        record = _record(path)
        sections = record["sections"]
        gpu = sections.get("versions", {}).get("notes", {}).get("gpu")
        card = f"{gpu['name']} {gpu['uuid'][4:12]}, driver {gpu['driver']}" if gpu else "not noted"
        passed = [f"`{name}`" for name, one in sections.items() if one["result"] == "ok"]
        others = [f"`{n}` {one['result']}" for n, one in sections.items() if one["result"] != "ok"]
        row = (f"[{record['date'][:16].replace('T', ' ')}]({path.name})", card)
        row += (record["commit"][:8], f"{record['seconds'] / 60:.0f} min")
        rows.append((*row, ", ".join(passed), ", ".join(others)))
    head = ("run (UTC)", "GPU", "commit", "took", "passed", "did not pass")
    return _filled(HARDWARE / "README.md", "the runs", table(head, rows))


def storms() -> str:
    """The page about faults, with a row for each storm that is recorded."""
    told = {
        "faults": lambda one: one["faults"]["all"],
        "histories": lambda one: one["histories"],
        **{
            words: lambda one, key=key: one["looked_at"][key]
            for words, key in (
                ("grants seen", "grants"),
                ("waits", "waits"),
                ("parks", "parks"),
                ("leases told as ended", "leases told as ended"),
            )
        },
        "found": lambda one: one["violations"],
    }
    found = _record(HERE / "faults.json")["soak"]
    rows = [
        (
            f"{number}: {one['note']}",
            f"{one['minutes']:.0f} min",
            *(f"{read(one):,}" for read in told.values()),
            f"{one['seconds_until_all_gpus_were_free']['longest']:.2f} s",
        )
        for number, one in enumerate(found, 1)
    ]
    sums = (f"{sum(map(read, found)):,}" for read in told.values())
    rows.append(("all", f"{sum(one['minutes'] for one in found):.0f} min", *sums, ""))
    head = ("storm", "took", *told, "longest until all GPUs were free")
    return _filled(HERE / "faults.md", "the storms", table(head, rows))


def walls() -> str:
    """The page about security, with what became of requests beside those who take all memory."""
    record = _record(HERE / "walls.json")
    runs = [record["with walls"], record["without walls"]]
    told: dict[str, Callable[[Any], str]] = {"requests": lambda one: f"{one['requests']:,}"}
    for words, end in (
        ("served", "served"),
        ("out of memory, in spite of a lease", "out of memory"),
        ("no GPU, in spite of a lease", "no device"),
        ("refused", "refused"),
        ("lease or process ended by others", ""),
    ):
        ends = (end,) if end else ("ended", "killed")
        told[words] = lambda one, ends=ends: f"{sum(one['ends'].get(end, 0) for end in ends):,}"
    told["not granted in time"] = lambda one: (
        f"{one['ends'].get('waited', 0):,} ({one['patience']:.0f} s)"
    )
    for who in ("without a lease", "with a lease"):
        at = f"the attacker {who}"
        told[f"{at}: most memory on a GPU"] = lambda one, who=who: (
            f"{one[who]['most'] / 2**30:.1f} GiB"
        )
        told[f"{at}: answers *out of memory*"] = lambda one, who=who: (
            f"{one[who]['out of memory']:,}"
        )
        told[f"{at}: answers *no device*"] = lambda one, who=who: f"{one[who]['no device']:,}"
    rows = [(words, *map(read, runs)) for words, read in told.items()]
    made = table(("", "with walls", "without"), rows)
    at = "Run on {date}, commit `{commit}`, on {cores} cores, at a load of {load average:.0f}."
    at = at.format(**record["machine"])
    return _filled(HERE / "security.md", "beside who takes all memory", f"{made}\n{at}")


def _filled(page: Path, name: str, made: str) -> str:
    """A page's text with a table between the marks of this name."""
    begin, end = f"<!-- made: {name} -->\n", "<!-- end -->"
    text, found, rest = page.read_text("utf-8").partition(begin)
    if not found:
        raise SystemExit(f"{page} has no place for {name}")
    return f"{text}{begin}\n{made}\n{end}{rest.partition(end)[2]}"


def _record(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def with_figures() -> Iterable[tuple[str, str]]:
    """Other pages that have marked figures, by their paths from `OUT`, as they are to be."""
    for path in sorted([HERE.parent / "README.md", *HERE.rglob("*.md")]):
        text, name = path.read_text("utf-8"), os.path.relpath(path, OUT)
        if name not in PAGES and FIGURE.search(text):
            yield name, figures(text)


PAGES: dict[str, Callable[[], str]] = {
    "states.md": states,
    "errors.md": errors,
    "events.md": events,
    "environment.md": environment,
    "configuration.md": configuration,
    "metrics.md": metrics,
    "cli.md": command_line,
    "quotas.md": quota_fields,
    "magics.md": magics,
    "rest.md": rest,
    "openapi.json": openapi,
    "../protocol.md": protocol,
    "../hardware/README.md": hardware,
    "../faults.md": storms,
    "../security.md": walls,
}


def main() -> int:
    """Write the pages, or compare them; 1 when one is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    OUT.mkdir(exist_ok=True)
    stale = []
    made = {
        name: (MADE if name.endswith(".md") and "/" not in name else "") + make()
        for name, make in PAGES.items()
    }
    for name, text in {**made, **dict(with_figures())}.items():
        path = OUT / name
        if check:
            if not path.exists() or path.read_text("utf-8") != text:
                stale.append(name)
        else:
            path.write_text(text, "utf-8")
    for name in stale:
        page = os.path.relpath(OUT / name, HERE.parent)
        print(f"{page} is stale: run python docs/generate.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
