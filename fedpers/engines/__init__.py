"""Many clients at once: loop, vmap stack, worker processes, Ray bundles."""
