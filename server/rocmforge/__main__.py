"""`rocmforge`, and `python -m rocmforge`."""

import os
import signal
import sys


def main() -> int:
    """Runs one command and returns its exit code.

    Until everything is imported, which takes seconds with a cold disk, ^C ends the program here.
    Python's exception for it would show where it hit the imports, or be lost among them.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # it may be ignored
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from rocmforge import cli

    return cli.main(ready=_take_interrupts)


def _take_interrupts() -> None:
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if __name__ == "__main__":
    sys.exit(main())
