"""Many models on the GPUs that idle. `core` decides, without clock or I/O; nothing runs it yet."""
