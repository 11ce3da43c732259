"""How belief is updated: message passing and the inference methods."""
