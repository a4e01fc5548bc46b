"""What there is to say of a server to those who may use it."""

from __future__ import annotations

import json

from ..protocol import documents as doc
from .text import name, said, who


def says(row: doc.Server, standing: tuple[str, str, str]) -> list[doc.Fact]:
    """Whose it is, what, where, and how it stands."""
    tone, word, hint = standing
    return [
        said("who", who(row)),
        said("what", name(row["model"] or row["name"]), hint=name(row["name"])),
        said("where", name(row["address"], 256)),
        said("state", word, tone=tone, hint=hint),
    ]


def snippet(row: doc.Server) -> str:
    """Python that asks it; as OpenAI's kind understands it, if it lists a model as those do.

    The token is looked up when it runs: a notebook is kept, and shown to others.
    """
    address, model = json.dumps(row["address"].rstrip("/")), json.dumps(row["model"])
    if row["model"] is None:
        return (
            "from urllib.request import Request, urlopen\n"
            "from jupyter_gpushare.client import server_token\n\n"
            f"address = {address}\n"
            'sent = {"Authorization": f"Bearer {server_token(address)}"}\n'
            'urlopen(Request(f"{address}/...", headers=sent)).read()'
        )
    return (
        "from jupyter_gpushare.client import server_token\n"
        "from openai import OpenAI\n\n"
        f"address = {address}\n"
        'client = OpenAI(base_url=f"{address}/v1", api_key=server_token(address))\n'
        f"client.chat.completions.create(\n    model={model},\n"
        '    messages=[{"role": "user", "content": "Hello"}],\n)'
    )
