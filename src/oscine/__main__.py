"""`python -m oscine` is `oscine`."""

from oscine.cli import main

if __name__ == "__main__":
    main()
