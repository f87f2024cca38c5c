"""Plain text through a tokenizer file of Hugging Face: a tokenizer.json, which is data alone."""

from __future__ import annotations

import importlib.util

import numpy as np

from executor.data.tokens import Text, Tokens
from executor.errors import LaunchError, TextError
from topologies.files.reading import UserFile

FILE = UserFile("tokenizer", TextError, most_bytes=1 << 28)
MOST_BYTES = 1 << 26  # every rank holds the whole text with its tokens, some 100 bytes for each


def require_tokenizers() -> None:
    """Refuse to go on without the package, saying how to get it."""
    if importlib.util.find_spec("tokenizers") is None:
        raise LaunchError(
            "--tokenizer needs the package tokenizers; `pip install 'simgpt[data]'` brings it"
        )


def tokenized(text: Text, name: str, tokenizer: str) -> Tokens:
    """The text's tokens, without special ones; the text is cut nowhere before it is tokenised."""
    require_tokenizers()
    from tokenizers import Tokenizer

    if len(text) > MOST_BYTES:
        raise TextError(
            f"{name} has {len(text):,} bytes; more than {MOST_BYTES:,} are to be tokenised before "
            "the run, into Megatron's .bin and .idx (its tools/preprocess_data.py)"
        )
    try:
        encode = Tokenizer.from_str(FILE.text(tokenizer)).encode
    except TextError:
        raise
    except Exception as error:  # the package has no errors of its own
        raise TextError(f"{tokenizer} is no tokenizer.json of Hugging Face: {error}") from None
    try:
        plain = bytes(text).decode()
    except UnicodeDecodeError as error:
        raise TextError(f"{name} is no UTF-8 text: byte {error.start} is not") from None
    ids = encode(plain, add_special_tokens=False).ids
    return Tokens(name, np.asarray(ids, dtype=np.int64))
