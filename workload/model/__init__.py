"""The fields of a model, a module for each of its parts; what follows from them is in `models`."""
