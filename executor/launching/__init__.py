"""Ranks as processes: what each is told, how they are started, watched and ended."""
