"""YAML and overrides to frozen dataclasses; the table of methods."""
