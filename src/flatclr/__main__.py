"""`python -m flatclr`, which torchrun needs, is the same as `flatclr`."""

from flatclr.cli.main import main

if __name__ == "__main__":
    main()
