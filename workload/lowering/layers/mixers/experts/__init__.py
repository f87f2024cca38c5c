"""Mixture of experts: routing, dispatch and the experts' linears."""
