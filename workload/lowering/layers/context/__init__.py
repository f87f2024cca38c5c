"""Attention whose sequences are split over ranks of context."""
