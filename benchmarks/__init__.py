"""What users ask, timed: each module is a command with `--smallest`, `--json FILE` and `--help`."""
