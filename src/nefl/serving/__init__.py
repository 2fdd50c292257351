"""Predictions for images: from files, and over HTTP."""
