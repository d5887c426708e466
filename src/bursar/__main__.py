"""``python -m bursar``: the same as the ``bursar`` command."""

from bursar.cli.main import main

if __name__ == "__main__":
    main()
