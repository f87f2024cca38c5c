"""Tests of simulator/."""
