"""What `picstore export` writes: a module for each format, each with a class that takes records."""
