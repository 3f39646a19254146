"""The installed command `omnidraft`, outside the package so that Ctrl-C ends it while that is imported."""

import signal
import sys

ENDINGS = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]  # `kill`; a terminal that is closed

def stop(number: int, frame: object) -> None:
    """End as Ctrl-C does, so that what was learned is saved; answers SIGTERM and SIGHUP, once."""
    for name in ENDINGS:  # subtle: a terminal that closes may send several, which must not interrupt the save
        signal.signal(getattr(signal, name), lambda *_: None)  # not SIG_IGN: Python would report one that waits
    raise KeyboardInterrupt


def main() -> None:
    """Run the command line; until it is imported the system answers Ctrl-C (exit status 130), then Python does."""
    python = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else it is ignored, as after nohup
    if python:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from omnidraft.cli import app  # takes time

    try:
        if python:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        for name in ENDINGS:
            if signal.getsignal(getattr(signal, name)) is signal.SIG_DFL:  # else it is ignored, as SIGHUP after nohup
                signal.signal(getattr(signal, name), stop)
        app()
    except KeyboardInterrupt:
        sys.exit(130)
