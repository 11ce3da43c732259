"""Message passing over latent chains: the filter, the smoother, the best path, counts."""
