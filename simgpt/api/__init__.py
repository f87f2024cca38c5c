"""The functions of `import simgpt`: each asks what the command of its name asks."""
