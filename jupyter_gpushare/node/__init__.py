"""The node manager: the process that owns a node's GPUs.

``app`` starts everything by the settings that ``configuration`` declares; ``manager`` runs the loop
from a command to its effects. The rooms below them do the input and output, one subject each. What
is decided, is decided in ``policy``, which does no input or output.
"""
