"""Who a client is, and how people share the node manager's own time.

Identity from the operating system or from JupyterHub, what is remembered while the Hub is away,
and the order in which people's calls are served. Their quotas are in :mod:`..quotas`.
"""
