"""Reality: the program played with torch tensors and torch.distributed collectives."""
