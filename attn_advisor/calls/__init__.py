"""Existing calls of attention functions: what they are given, and whether a cheaper call computes the same."""
