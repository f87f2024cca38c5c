"""Published runs of models with experts beside their predictions."""

from validation.moe.comparison import MoeComparison, validate_moe

__all__ = ["MoeComparison", "validate_moe"]
