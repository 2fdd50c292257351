"""Runs as their folders tell them: what was measured, what it cost, which are one but for seeds."""
