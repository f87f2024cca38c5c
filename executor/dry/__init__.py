"""A plan's program played by one process without its machine: fake groups and fake tensors."""
