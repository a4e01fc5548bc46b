"""What people and monitoring read of the node: status, history, measurements, metrics, the log.

Everything here only reads the state, the ledger's records or the last measurements. Nothing is
decided by it, so the node manager would grant the same GPUs without this room.
"""
