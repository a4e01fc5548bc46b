"""What is fuzzed, and how inputs are made; see ``targets.py``."""
