"""attn-advisor: finds hand-written attention, rewrites what it can prove, measures the rest."""

__version__ = "0.1.0"
