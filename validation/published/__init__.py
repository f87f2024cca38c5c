"""Published runs beside their predictions, with the baselines that a simulator has to beat."""

from validation.published.comparison import Comparison, validate_published
from validation.published.runs import RunsError, read_runs

__all__ = ["Comparison", "RunsError", "read_runs", "validate_published"]
