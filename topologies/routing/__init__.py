"""Links and routes: the graph of a machine, and what its flows get of each link."""
