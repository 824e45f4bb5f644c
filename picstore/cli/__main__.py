"""``python -m picstore.cli``, for where the console script is not on the path."""

from picstore.cli import main

if __name__ == "__main__":
    main()
