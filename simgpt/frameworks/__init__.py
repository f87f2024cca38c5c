"""Settings of other frameworks, read as a question of simgpt's and written from one.

Each framework has a table of its names (`*.toml`), which both directions go by, and a module for
what follows from several of them.
"""
