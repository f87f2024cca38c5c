"""What a message has to name, in whatever words: fields, values, files, what would be right.

with pytest.raises(ValueError, check=names("tp=8", "kv_heads=4")):
    ...
assert_names(result.stderr, "--batch", "63")
"""

from __future__ import annotations

import re
from collections.abc import Callable


def assert_names(text: str, *words: str) -> None:
    """Fail unless `text` has each of `words` as a whole word, in any order and on any line.

    A word may have spaces, which stand for any white space: messages are broken into lines.
    """
    missing = [word for word in words if not _pattern(word).search(text)]
    assert not missing, f"not named: {missing}, in: {text}"


def names(*words: str) -> Callable[[BaseException], bool]:
    """A `check` of `pytest.raises`: the error's text names each of `words`."""

    def check(error: BaseException) -> bool:
        assert_names(str(error), *words)
        return True

    return check


def _pattern(word: str) -> re.Pattern[str]:
    """`word` where no letter, digit or underscore goes on before or after it."""
    inner = r"\s+".join(map(re.escape, word.split()))
    return re.compile(rf"(?<!\w){inner}(?!\w)")
