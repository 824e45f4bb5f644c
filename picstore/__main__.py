"""``python -m picstore``, for shells without the ``picstore`` script on their path."""

from picstore.cli import main

if __name__ == "__main__":
    main()
