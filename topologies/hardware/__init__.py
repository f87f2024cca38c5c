"""The parts of a machine: devices, nodes, what joins them, and their software."""
