"""Commands for the shell that simgpt is used from."""
