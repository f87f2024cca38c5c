"""The calendar of a whole training run: failures, checkpoints, restarts, queues, and its end."""
