"""Source text, its definitions and what its names mean."""
