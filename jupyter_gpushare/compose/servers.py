"""What there is to say of a server to those who may use it."""

from __future__ import annotations

import json

from ..protocol import documents as doc
from .text import name, said


def says(row: doc.Server, standing: tuple[str, str, str]) -> list[doc.Fact]:
    """Whose it is, what, where, and how it stands."""
    whose, (tone, word, hint) = name(row["environment"]), standing
    return [
        said("who", f"{whose} (you)" if row["mine"] else whose),
        said("what", name(row["model"] or row["name"]), hint=name(row["name"])),
        said("where", name(row["address"], 256)),
        said("state", word, tone=tone, hint=hint),
    ]


def snippet(row: doc.Server) -> str:
    """Python that asks it, as those who serve models understand it.

    The token is looked up when it runs: a notebook is kept, and shown to others.
    """
    address = json.dumps(row["address"])
    base, model = (json.dumps(one) for one in (f"{row['address'].rstrip('/')}/v1", row["model"]))
    return (
        "from jupyter_gpushare.client import server_token\n"
        "from openai import OpenAI\n"
        f"client = OpenAI(base_url={base}, api_key=server_token({address}))\n"
        f"client.chat.completions.create(\n    model={model if row['model'] else '...'},\n"
        '    messages=[{"role": "user", "content": "Hello"}],\n)'
    )
