"""Studies: many predictions from one file, row by row, on one process or on a cluster."""
