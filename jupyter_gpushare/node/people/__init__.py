"""Who a client is.

Identity from the operating system or from JupyterHub, and what is remembered while the Hub is away.
"""
