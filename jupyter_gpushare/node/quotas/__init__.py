"""Where quotas come from: the configuration file and JupyterHub's groups.

The room reads them, keeps the Hub's last answer in a file, and works them out anew when GPUs come.
Which quota holds for an environment is decided in ``policy/books/quotas.py``; quotas that an
administrator sets while the node manager runs are events in the ledger.
"""
