"""What every part speaks: parameters, pytrees, data, random streams, wire format, errors."""
