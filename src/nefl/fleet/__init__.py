"""Which submodels for which devices: a family designed for a fleet."""
