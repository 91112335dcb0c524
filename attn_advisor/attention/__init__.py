"""Attention sites: recognition, masks, layout and rewriting."""
