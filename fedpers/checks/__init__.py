"""The contract that every method must pass; public: `check_method(MyStrategy, MyClient, MyConfig())`."""

from fedpers.checks.contract import check_method

__all__ = ["check_method"]
