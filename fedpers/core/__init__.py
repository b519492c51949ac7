"""Shared building blocks: parameters, pytrees, data, random streams, wire format, errors."""
