"""What a run does beside its steps: the learning rate of each, and evaluations."""
