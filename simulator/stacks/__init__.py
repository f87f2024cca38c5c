"""Software stacks: what a training framework makes of a plan, each in a TOML file."""

from simulator.stacks.stack import EXECUTOR, Stack, StackError
from simulator.stacks.stack_files import is_shipped, load_stack, stack_names

__all__ = ["EXECUTOR", "Stack", "StackError", "is_shipped", "load_stack", "stack_names"]
