"""The check of what messages name sees whole words only."""

from __future__ import annotations

import pytest

from tests.messages import assert_names, names


@pytest.mark.parametrize("word", ["tp=8", "kv_heads=4", "nearest: 4", "--plan"])
def test_a_word_of_a_message_is_found_across_lines(word: str) -> None:
    assert_names("--plan: tp=8 does not divide kv_heads=4; nearest:\n  4", word)


@pytest.mark.parametrize("word", ["tp=80", "tp=1", "heads=4", "=4;  nearest", "lan"])
def test_a_part_of_a_word_is_not_the_word(word: str) -> None:
    with pytest.raises(AssertionError):
        assert_names("--plan: tp=8 does not divide kv_heads=4", word)


def test_an_error_that_names_something_else_is_not_accepted() -> None:
    with pytest.raises(AssertionError), pytest.raises(ValueError, check=names("y=2")):
        raise ValueError("tp=2 is unknown")
