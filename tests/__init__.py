"""What must hold: the folders mirror the packages they test."""
