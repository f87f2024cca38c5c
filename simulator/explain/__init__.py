"""What a step waits for, and what would make it faster."""
