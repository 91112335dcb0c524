"""The lab: detected attention is run as written and in every other way, compared with float64, and measured.

Imports of torch stay inside the worker's modules; `commands`, `job`, `targets`, `session`, `console` and `advice` work without it.
"""
