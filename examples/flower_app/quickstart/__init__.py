"""A Flower app with nested submodels."""
