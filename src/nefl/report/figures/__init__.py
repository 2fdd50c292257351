"""Figures of runs: the records they are drawn from, and their descriptions."""
