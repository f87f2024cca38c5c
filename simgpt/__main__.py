"""The program: `python -m simgpt`, and the script `simgpt`.

From its first lines on a signal ends it with one sentence and a status. While modules are imported
there is nothing to tidy up, and a library that is half imported may make anything of an exception:
so the process ends then and there. A command that runs is left through its `with` blocks, for which
`simgpt.cli` has other handlers meanwhile.
"""

import _signal  # type: ignore[import-not-found]  # what `signal` itself imports takes a while
import atexit
import os
import sys

_WORDS = {
    _signal.SIGINT: "interrupted",
    _signal.SIGTERM: "ended by SIGTERM",
    _signal.SIGHUP: "ended by SIGHUP",
}
# nohup, and a shell in its background, ignore signals.
_HEEDED = [
    number
    for number in _WORDS
    if number == _signal.SIGTERM or _signal.getsignal(number) is not _signal.SIG_IGN
]


def _leave(number: int, _: object = None) -> None:
    """End this process, and with it those that it started."""
    try:
        os.write(2, f"simgpt: {_WORDS[number]}\n".encode())
    finally:  # stderr may be closed
        os._exit(128 + number)


for _number in _HEEDED:
    _signal.signal(_number, _leave)


def main() -> None:
    """Run the command line."""
    sys.unraisablehook = _unraisable
    atexit.register(_deafen)  # before any other, so it runs last
    try:
        from simgpt.cli import main as answer

        answer()
    except KeyboardInterrupt:  # between two handlers
        _leave(_signal.SIGINT)


def _deafen() -> None:
    """Let Python take itself down, which calls no handlers any more."""
    for number in _HEEDED:
        _signal.signal(number, _signal.SIG_IGN)


def _unraisable(lost: "sys.UnraisableHookArgs") -> None:
    """End where a signal's exception came in a finalizer, which Python would print and forget."""
    if isinstance(lost.exc_value, KeyboardInterrupt):
        _leave(_signal.SIGINT)
    if isinstance(lost.exc_value, SystemExit):
        os._exit(int(lost.exc_value.code or 0))
    sys.__unraisablehook__(lost)


if __name__ == "__main__":
    main()
