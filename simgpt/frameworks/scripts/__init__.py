"""Shell scripts, read without a shell."""
