"""How weights travel between server and clients: which tensors are made smaller, and how."""
