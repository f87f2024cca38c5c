"""Pipelines: each distinct slot simulated once op by op, and the schedule slot by slot."""

from simulator.pipeline.pipeline_step import simulate_pipeline

__all__ = ["simulate_pipeline"]
