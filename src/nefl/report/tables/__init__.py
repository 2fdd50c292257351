"""Runs side by side, as tables in several formats."""
