"""Paged-attention backends behind one registry: what each can do, and why not where it cannot."""
