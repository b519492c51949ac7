"""Stores of clients' states between rounds: RAM, files of rows, one file per client."""
