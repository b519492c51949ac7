# What type checkers and editors see; __init__.py imports each name when it is first used.
from fedpers.app.exported import load_exported as load_exported
from fedpers.app.python_api import compare as compare
from fedpers.app.python_api import load as load
from fedpers.app.python_api import run as run
from fedpers.app.stored_runs import Comparison as Comparison
from fedpers.app.stored_runs import Run as Run
from fedpers.core.data import Federation as Federation
from fedpers.core.errors import ConfigError as ConfigError
from fedpers.core.errors import FedpersError as FedpersError
from fedpers.flower.observer import Observer as Observer

__version__: str
__all__: list[str]
