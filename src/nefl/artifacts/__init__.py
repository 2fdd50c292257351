"""What a run leaves behind: its folder, log and checkpoints."""
