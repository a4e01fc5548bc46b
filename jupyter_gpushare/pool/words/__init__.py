"""The pool's words: hosts and what they report, commands, events, effects, wishes."""
