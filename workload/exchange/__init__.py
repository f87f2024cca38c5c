"""Exchanges of rows between the ranks of experts: what is sent, by whom, how, and at which rate."""
