"""Internal: the verbs as functions, one module per verb; ``picstore`` exports them, and ``cli`` parses the options."""
