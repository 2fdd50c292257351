"""What carries tasks to clients and updates back: in this process, in several, over a network."""
