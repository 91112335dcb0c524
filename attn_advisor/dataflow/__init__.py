"""The value graph: what each name of a function holds, as operations over earlier values."""
