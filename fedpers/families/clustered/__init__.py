"""Several models on the server, one a cluster."""
