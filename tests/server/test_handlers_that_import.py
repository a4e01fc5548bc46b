"""A handler of another extension imports a framework: the server takes no GPU and never waits."""

from __future__ import annotations

import os

from support.jupyter import Home

EXTENSION = """
import asyncio, os
from jupyter_server.base.handlers import JupyterHandler
from tornado.web import authenticated

class Handler(JupyterHandler):
    @authenticated
    async def get(self, what):
        if what == "import":
            import caffe
            await asyncio.to_thread(__import__, "mxnet")
        else:
            from jupyter_gpushare.client import request
            await asyncio.to_thread(request)
        self.finish(os.environ.get("JUPYTER_GPUSHARE_LEASE", "none"))

def _jupyter_server_extension_points():
    return [{"module": "assistant"}]

def _load_jupyter_server_extension(app):
    app.web_app.add_handlers(".*$", [(app.base_url + "assistant/(.*)", Handler)])
"""
LEASE = "import caffe, os; print(os.environ.get('JUPYTER_GPUSHARE_LEASE'))"


def test_a_handler_takes_no_gpu_and_no_kernel_joins_its_server(home: Home) -> None:
    site = home.path / "site"
    site.mkdir()
    (site / "assistant.py").write_text(EXTENSION)
    for name in ("caffe", "mxnet"):
        (site / f"{name}.py").touch()
    path = os.pathsep.join([os.fspath(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    enabled = {"jupyter_gpushare": True, "assistant": True, "jupyterlab": False}
    server = home.serve(
        f"--ServerApp.jpserver_extensions={enabled}",
        "--GpuShareExtension.embed=always",
        enabled_by_hand=False,
        environ=home.environ(PYTHONPATH=path),
    )
    server.wait_connected()
    assert server.api.get("assistant/import").text == "none"
    assert server.gpushare("status")["leases"] == []
    assert "`import caffe` asked for no GPU. A server's event loop asks" in server.tail(200)

    kernel = server.start_kernel()
    first = kernel.run(LEASE).strip()
    assert [lease["id"] for lease in server.gpushare("status")["leases"]] == [first]

    # What a handler asks for in so many words it gets, and keeps for itself.
    its = server.api.get("assistant/request").text
    second = server.start_kernel().run(LEASE).strip()
    held = {lease["id"] for lease in server.gpushare("status")["leases"]}
    assert held == {first, its, second}
    assert len(held) == 3
