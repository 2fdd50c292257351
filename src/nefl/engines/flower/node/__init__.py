"""The side of a node: answering a message, with data and memory of its own."""
