"""Updates of parameters by rules other than AdamW."""
