"""The search for the best plan: the whole space bounded from below, the rest simulated."""
