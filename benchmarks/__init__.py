"""Speed and memory, measured side by side in one run: `python -m benchmarks`.

Nothing here is installed with kvsim. docs/performance.md holds a table made by it.
"""
