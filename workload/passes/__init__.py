"""Passes over a program's ops: overlaps of communication, and forms of matmuls."""
