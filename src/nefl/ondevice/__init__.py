"""Submodels that train in ExecuTorch, where there is no PyTorch."""
