"""What jobs print of their own arguments into their logs."""
