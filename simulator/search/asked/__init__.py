"""Choices that a search tries where they are asked for by name, each with bounds that hold."""
