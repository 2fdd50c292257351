"""What a client does: it gets a submodel, its examples and a seed, and returns an update."""
