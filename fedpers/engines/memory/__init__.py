"""Where the state of clients lies between rounds: RAM, row files, a file a client."""
