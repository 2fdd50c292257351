"""The page of a report, and the one that follows runs while they go on."""
