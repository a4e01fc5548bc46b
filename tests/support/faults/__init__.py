"""The fault harness: real processes, random faults, and a checker that believes only clients."""
