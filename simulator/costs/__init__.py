"""How long an op takes on a device: modelled, published, calibrated or measured."""
