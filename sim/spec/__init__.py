"""Configurations: read, checked as a whole, and built; errors say line, key and remedy."""
