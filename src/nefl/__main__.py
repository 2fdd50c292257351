"""Run the command line with `python -m nefl`."""

from nefl.cli import main

if __name__ == "__main__":
    main()
