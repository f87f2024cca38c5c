"""Parts of configs of Hugging Face: which family it is, and its experts."""
