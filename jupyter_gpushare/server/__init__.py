"""The Jupyter server extension: REST, WebSocket, events and metrics for the server's own user.

It also hosts a node manager where the host has none for everybody (``embed``), and tells kernels
which notebook they belong to. What JupyterLab shows is in ``labextension/``.
"""
