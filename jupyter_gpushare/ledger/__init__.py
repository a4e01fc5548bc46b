"""The ledger: the durable record of quotas, leases and every event, in SQLite.

Writing and reading it, usage figures beside it, its place, its budget, and copies of it. A node
manager and a pool have the same. What the events mean is known to ``policy``; the ledger stores
them as JSON. Lines for people are made in ``node/views/history.py``.
"""
