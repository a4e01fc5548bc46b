"""Engines: what gives hosts to a pool for a time, and takes them back, such as Slurm.

An engine is one file, which says what hosts there are, gets more and gives them up
(:mod:`.engine`). How many are wanted is decided without any engine (:mod:`.wanted`), and one loop
carries it out (:mod:`.keeping`). The pool knows no engine: it is told of each host what holds it.
"""
