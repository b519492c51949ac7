"""Commands and Flower apps: build a run, choose its engine, drive it."""
