"""Edits of a file: applying them, and proving them right by running the code before and after."""
