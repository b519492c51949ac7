"""What a package needs that brings a method of its own; see the entry-point group `fedpers.methods`."""

from fedpers.config.registry import Method, method, methods

__all__ = ["Method", "method", "methods"]
