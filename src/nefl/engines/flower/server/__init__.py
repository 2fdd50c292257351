"""The server's side of Flower: who is there, what is sent, what comes back."""
