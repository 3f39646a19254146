"""`python -m omnidraft demo` is the same program as the installed `omnidraft demo`."""

from .cli import app

if __name__ == "__main__":
    app()
