"""What a study found, as a page that answers its question."""
