"""Which framework's a file is, by names that no other framework has (`frameworks/known.toml`)."""
