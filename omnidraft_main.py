"""The installed command `omnidraft`, outside the package so that Ctrl-C ends it while that is imported."""

import signal
import sys


def main() -> None:
    """Run the command line; until it is imported the system answers Ctrl-C (exit status 130), then Python does."""
    python = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else it is ignored, as after nohup
    if python:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from omnidraft.cli import app  # takes time

    try:
        if python:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        app()
    except KeyboardInterrupt:
        sys.exit(130)
