"""What a manager holds: seen block by block, kept in a file, taken up again by a run."""
