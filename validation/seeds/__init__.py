"""The two papers that set the scope of simgpt: every published figure beside its prediction."""

from validation.seeds.table import SeedRow, validate_seeds

__all__ = ["SeedRow", "validate_seeds"]
