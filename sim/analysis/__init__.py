"""What numbers mean: bounds and optimum, memory curves, misses explained, comparisons."""
