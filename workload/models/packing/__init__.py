"""Documents of several lengths in one sequence."""
