"""Computing centres: how a job with one rank for each device is submitted there."""
