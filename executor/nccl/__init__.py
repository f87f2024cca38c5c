"""The order in which ranks issue collectives and messages, and whether NCCL can end it."""
