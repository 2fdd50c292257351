"""Taking a submodel away: as a plain network in a file of another runtime, checked against it."""
