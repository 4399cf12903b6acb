"""What the layers compute: the ops, their reference in torch, and the backends that serve them."""
