"""Kinds of attention beside the usual one."""
