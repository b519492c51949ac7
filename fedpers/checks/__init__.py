"""The contract that every method must pass; public: `check_method(MyStrategy, MyClient, MyConfig())`.

`CHECKS` are its checks one by one: each takes a case, which `make_case` makes of the same three.
"""

from fedpers.checks.contract import CHECKS, check_method, make_case

__all__ = ["CHECKS", "check_method", "make_case"]
