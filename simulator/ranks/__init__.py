"""Which ranks behave alike, whom they meet in collectives, and over which links."""
