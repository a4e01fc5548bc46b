"""Asking tasks to give something back: what they could give, which are asked, how long we wait.

Every such question is one `Recall`. The books count what a task has given only when a measurement
shows it; that change is made in :mod:`..evolve`, not here.
"""
