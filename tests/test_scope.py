"""Values that hold for a while."""

from contextvars import ContextVar

import pytest

from fedpers.core.scope import holding

level: ContextVar[int] = ContextVar("level", default=0)


def test_a_value_holds_while_it_is_open_also_within_itself_and_if_something_fails():
    with holding(level, 1):
        with holding(level, 2):
            assert level.get() == 2
        assert level.get() == 1
        with pytest.raises(ValueError, match="there"), holding(level, 3):
            raise ValueError("there")
        assert level.get() == 1
    assert level.get() == 0


def test_of_a_decorated_function_each_call_holds_it_anew():
    @holding(level, 1)
    def down(depth):
        with holding(level, 5):
            below = down(depth - 1) if depth else level.get()
        return level.get(), below

    assert down(2) == (1, (1, (1, 5)))
    assert level.get() == 0
