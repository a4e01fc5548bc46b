"""What the node manager decides: a pure function of state, command and configuration.

The rooms, from the ground up: ``words`` (types, commands, events), ``books`` (the state and
questions to it), ``evolve`` (the state after an event), ``say`` (texts, checks, effects), ``turns``
and ``recall`` (who computes next, who is asked to give something back), ``measure`` (what a
reading means) and ``decide`` (what follows from a command). The rest of the package calls
:mod:`.core`. Nothing in here reads a clock, a random number, a file or the environment: ids and
times arrive in commands.
"""
