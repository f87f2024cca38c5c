"""Simulated time: streams of ops, contention, interference, and exact repetition."""
