"""Drawn command lines and files for `simgpt`, and a judge of what it makes of them.

Every input goes through `simgpt.cli.main` in a process whose memory is limited; input i of a seed
is always the same. `python -m tests.simgpt.fuzz --inputs 10000 --seeds 11,12,13` runs many.
"""
