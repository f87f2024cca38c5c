"""Arguments of several commands, and what their words stand for."""
