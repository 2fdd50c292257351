"""Flower's programs on one machine: an app's files, certificates, a loopback federation."""
