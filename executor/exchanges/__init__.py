"""All-to-alls of experts' rows that heed which ranks share a node."""
