"""What a manager holds, kept in a file and taken up again by a run."""
