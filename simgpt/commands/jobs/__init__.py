"""Commands about jobs: measured ones, and those to submit."""
