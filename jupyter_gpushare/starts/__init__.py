"""Starting a server or a kernel on another host of the pool.

Here live: the program that runs on that host (``there``), how it is reached by a prefix of its
command, say ``ssh b`` (``reach``), a kernel that is started so (``provisioner``), and what a person
wishes and a pool answers (``wishes``). Which host it is, is not decided here: the pool ranks hosts.
"""
