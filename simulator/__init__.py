"""Time: programs simulated on a model of the machine, and the search over plans."""
