"""Published runs of models with experts beside their predictions."""
