"""Replay: a trace of notebook sessions through the policy with a virtual clock."""
