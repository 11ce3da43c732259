"""`python -m btil` is the command `btil`."""

from btil.cli import main

if __name__ == "__main__":
    main()
