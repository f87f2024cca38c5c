"""A process that makes tokens of a text and ends: `python -m executor.data.encoder`.

The library of tokenizers is written in Rust: a file that it fails at may end in a panic, which is
no `Exception` and is printed on stderr, or may end the process; and a short file may ask for any
time and memory (a rule that doubles each letter, forty times). So it works in a process of its own,
within limits that its input sets, whose stderr its parent keeps to itself.

stdin is the size of the tokenizer's file in 8 bytes, that file, and the text in UTF-8; stdout the
tokens, 4 bytes each. The status of one that fails says at what, and stdout why.
"""

from __future__ import annotations

import resource
import sys
from array import array

READING, ENCODING = 3, 4  # statuses: the library did not take the file, or the text
SIZE_BYTES = 8
# Measured, with tokens of one letter and a vocabulary of a million words: 410 bytes for each byte
# of the text and 82 for each of the file, at 350 KB/s and 1.5 MB/s.
MEMORY, OF_TEXT, OF_FILE = 1 << 28, 1024, 256
CPU_S, TEXT_BYTES_PER_S, FILE_BYTES_PER_S = 10, 20_000, 100_000


def main() -> int:
    """Make the tokens."""
    from tokenizers import Tokenizer

    data = sys.stdin.buffer.read()
    start = SIZE_BYTES + int.from_bytes(data[:SIZE_BYTES], "little")
    file, text = data[SIZE_BYTES:start].decode(), data[start:].decode()
    del data
    _limit(len(file), len(text))
    try:
        tokenizer = Tokenizer.from_str(file)
        tokenizer.no_padding()
        tokenizer.no_truncation()
        if hasattr(tokenizer.model, "dropout"):
            tokenizer.model.dropout = None  # by chance, so that each rank would have other tokens
    except BaseException as error:
        return _failed(READING, error)
    try:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
    except BaseException as error:
        return _failed(ENCODING, error)
    sys.stdout.buffer.write(array("I", ids).tobytes())
    return 0


def _limit(file: int, text: int) -> None:
    """Bound the addresses and the processor's time of this process, unless a bound is there that
    is lower."""
    seconds = CPU_S + text // TEXT_BYTES_PER_S + file // FILE_BYTES_PER_S
    for what, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_AS, MEMORY + OF_TEXT * text + OF_FILE * file),
        (resource.RLIMIT_CPU, seconds),
    ):
        soft, hard = resource.getrlimit(what)
        bounds = [bound for bound in (soft, most) if bound != resource.RLIM_INFINITY]
        resource.setrlimit(what, (min(bounds), hard))


def _failed(status: int, error: BaseException) -> int:
    sys.stdout.write("it takes too much memory" if isinstance(error, MemoryError) else str(error))
    return status


if __name__ == "__main__":
    sys.exit(main())
