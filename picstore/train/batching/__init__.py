"""Contents of a batch before its pixels: records, parameters, columns, damage."""
