"""Jobs that users measured, from their logs and traces, beside predictions of the same steps."""
