"""Weights as Hugging Face publishes them, in safetensors: into a run, and out of it."""
