"""Studies: keys, points, the journal, and who works on them."""
