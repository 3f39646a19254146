"""Launcher: `python cli.py demo` is the same program as the installed `omnidraft demo`."""

import sys

if __name__ == "__main__":
    try:
        from omnidraft.__main__ import main
    except KeyboardInterrupt:
        sys.exit(130)
    main()
