"""Commands and Flower apps: build a run, choose its engine, drive it."""

import os as _os

# Flower and Ray report usage, look for updates and install packages unless they are told not to.
for _name, _value in {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}.items():
    _os.environ.setdefault(_name, _value)
