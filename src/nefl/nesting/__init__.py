"""How submodels nest in a global model: specs, families, corners, coverage and cost."""
