"""How people write and change quotas: in a configuration, in JupyterHub's groups, by a call.

A node manager and a pool read them alike. The Hub's last answer is kept in a file. Which quota
holds for an environment is decided in ``policy/books/quotas.py``; what an administrator sets
is an event in the ledger.
"""
