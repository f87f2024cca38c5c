"""How a user says which model: a preset's name, fields as text, or a file, Hugging Face's too."""
