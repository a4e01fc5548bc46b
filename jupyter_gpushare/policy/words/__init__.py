"""The words of the policy: frozen types, commands, events, settings, tables of allowed moves.

Every other room of the policy imports this one, and this one imports none of them. Its types have
fields and short questions about those fields. What needs the whole state is in :mod:`..books`;
sentences for people are in :mod:`..say`, but for the texts that declare an event or a reason.
"""
