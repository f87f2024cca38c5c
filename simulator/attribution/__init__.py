"""Where a step's time goes: its breakdown and its critical path."""
