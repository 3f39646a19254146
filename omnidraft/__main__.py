"""`python -m omnidraft demo` is the same program as the installed `omnidraft demo`."""

from omnidraft_main import main

if __name__ == "__main__":
    main()
