"""Peak memory beside measured peaks, and verdicts beside what happened: Megatron-LM's own CI runs,
and published runs."""

from validation.memory.memory_validation import MemoryValidation, validate_memory
from validation.memory.verdicts import VerdictValidation, validate_verdicts

__all__ = ["MemoryValidation", "VerdictValidation", "validate_memory", "validate_verdicts"]
