"""The life of a run: put together, begun, recorded, gone on with, ended."""
