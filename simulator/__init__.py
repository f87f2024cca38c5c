"""Time: the program played by SimPy on a model of the machine."""
