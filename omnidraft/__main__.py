"""`python -m omnidraft demo` runs the same program as the installed command `omnidraft demo`."""

from omnidraft_main import main

if __name__ == "__main__":
    main()
