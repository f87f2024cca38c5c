"""Plain text through a tokenizer file of Hugging Face: a tokenizer.json, which is data alone."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys

import numpy as np

from executor.data.encoder import ENCODING, READING, SIZE_BYTES
from executor.data.tokens import Text, Tokens
from executor.errors import LaunchError, TextError
from executor.launching.sentences import first_sentence, signal_name
from topologies.files.printable import path_shown
from topologies.files.reading import UserFile
from topologies.interpreter import child_environment

FILE = UserFile("tokenizer", TextError, most_bytes=1 << 28)
MOST_BYTES = 1 << 26  # every rank holds the whole text with its tokens, some 100 bytes for each
_ENDS: dict[int, str] = {  # of the library's process, by signal
    signal.SIGXCPU: "it takes too long for a text of that size",
    signal.SIGKILL: "there is too little memory for it",
    signal.SIGABRT: "it takes too much memory for a text of that size",
}


def require_tokenizers() -> None:
    """Refuse to go on without the package, saying how to get it."""
    if importlib.util.find_spec("tokenizers") is None:
        raise LaunchError(
            "--tokenizer needs the package tokenizers; `pip install 'simgpt[data]'` brings it"
        )


def tokenized(text: Text, name: str, tokenizer: str) -> Tokens:
    """The text's tokens, all of them and always the same: without special ones, and without the
    padding, truncation and dropout that a file may ask for. The text is cut nowhere before."""
    require_tokenizers()
    if len(text) > MOST_BYTES:
        raise TextError(
            f"{name} has {len(text):,} bytes; more than {MOST_BYTES:,} are to be tokenised before "
            "the run, into Megatron's .bin and .idx (its tools/preprocess_data.py)"
        )
    file, plain = FILE.text(tokenizer).encode(), bytes(text)
    try:
        plain.decode()
    except UnicodeDecodeError as error:
        raise TextError(f"{name} is not UTF-8 text: byte {error.start} is not") from None
    done = _encoded(file, plain)
    if done.returncode:
        raise TextError(_refusal(done, name, path_shown(tokenizer)))
    return Tokens(name, np.frombuffer(done.stdout, dtype=np.uint32).astype(np.int64))


def _encoded(file: bytes, text: bytes) -> subprocess.CompletedProcess[bytes]:
    """How the library's process ended; a Rust panic's words are on a stderr that nobody reads."""
    return subprocess.run(
        [sys.executable, "-m", "executor.data.encoder"],
        env={**os.environ, **child_environment(), "TOKENIZERS_PARALLELISM": "false"},
        input=len(file).to_bytes(SIZE_BYTES, "little") + file + text,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
    )


def _refusal(done: subprocess.CompletedProcess[bytes], name: str, tokenizer: str) -> str:
    """Why the library made no tokens."""
    if done.returncode == READING:
        why = first_sentence(done.stdout.decode(errors="replace"))
        return f"{tokenizer} is not a tokenizer.json of Hugging Face: {why}"
    if done.returncode == ENCODING:
        why = first_sentence(done.stdout.decode(errors="replace"))
    else:
        ended = -done.returncode
        why = _ENDS.get(ended, f"its library ended with {signal_name(ended)}")
    return f"{tokenizer} makes no tokens of {name}: {why}"
