"""In-place operations: what each operation saves for backward, and which changes of a tensor are unsafe."""
