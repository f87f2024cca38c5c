"""Training for real and measuring this machine: what is said before, meanwhile and after."""
