"""Launcher: `python cli.py demo` is the same program as the installed `omnidraft demo`."""

from omnidraft.cli import app

if __name__ == "__main__":
    app()
