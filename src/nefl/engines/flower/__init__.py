"""Clients on other machines: Flower carries the messages, nefl does the rest.

Nothing is imported here: a client's process is started for every message, and should load only
what it needs.
"""
