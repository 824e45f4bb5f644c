"""Entry point of ``python -m picstore``, for shells that do not find the script ``picstore`` on their path."""

from picstore.cli import main

if __name__ == "__main__":
    main()
