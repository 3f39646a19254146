"""`python -m omnidraft demo` is the same program as the installed `omnidraft demo`."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C while it is still imported is no traceback either."""
    try:
        from .cli import app

        app()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
