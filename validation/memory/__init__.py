"""Peak memory beside measured peaks: Megatron-LM's own CI runs, and published runs."""

from validation.memory.memory_validation import MemoryValidation, validate_memory

__all__ = ["MemoryValidation", "validate_memory"]
