"""Truth: predictions beside measurements, published ones and our own."""
