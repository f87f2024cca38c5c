"""What a user says of a model: a name, fields, a table, or a config.json of Hugging Face."""
