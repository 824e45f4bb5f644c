"""The structures of docs/format.md: headers, containers, records, files."""
