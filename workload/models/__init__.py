"""The fields of a model: their limits, and the counts that follow from them."""
