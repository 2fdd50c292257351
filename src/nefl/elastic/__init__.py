"""The whole family in one file, and a model that changes its size between two calls."""
