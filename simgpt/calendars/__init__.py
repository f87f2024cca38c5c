"""What `simgpt plan-run` is asked, and its answer as text and as a record."""
