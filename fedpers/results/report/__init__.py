"""Runs side by side, and beside the paper."""
