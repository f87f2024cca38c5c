"""Truth: predictions held against measurements."""
