"""How a file is asked: from a thing of the user's to inputs, and from outputs to an answer.

Everything needed stands on the file's card: neither a run nor its data nor a user's code.
"""
