"""`python -m oscine` is `oscine`."""

from oscine.commands.main import main

if __name__ == "__main__":
    main()
