"""The architectures, the paper's and small ones, and the submodels they are scaled into."""
