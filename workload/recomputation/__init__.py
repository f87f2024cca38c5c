"""What runs again in the backward pass."""
