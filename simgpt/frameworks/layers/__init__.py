"""Megatron-LM's arguments of layers with experts and with latent attention."""
