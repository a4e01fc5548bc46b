"""One server's part in the election, without the rest of a server.

``python host.py SOCKET ARGUMENT…`` hosts a node manager with these arguments if it is elected,
by the product's own ``EmbeddedNode``, as each Jupyter server does.
"""

from __future__ import annotations

import asyncio
import logging
import sys

from jupyter_gpushare.server.embed import EmbeddedNode


async def _serve(socket: str, arguments: list[str]) -> None:
    node = EmbeddedNode(socket=socket, arguments=arguments, log=logging.getLogger("host"))
    node.start()
    await asyncio.Event().wait()


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    asyncio.run(_serve(sys.argv[1], sys.argv[2:]))


if __name__ == "__main__":
    main()
