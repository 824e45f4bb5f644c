"""Internal: the verbs as functions, one module a verb; ``picstore`` names them, and ``cli`` parses their options."""
