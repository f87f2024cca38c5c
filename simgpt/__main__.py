"""`python -m simgpt` is `simgpt`."""

from simgpt.cli import main

main()
