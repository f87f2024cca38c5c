"""Scripts that a developer runs now and then, and no user: they write or check what is shipped."""
