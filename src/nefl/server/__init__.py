"""The server's side of a round: who takes part, what is averaged, what is measured."""
