"""Real devices: keys, the client's own data and state, the grid that reaches them, submission of runs."""
