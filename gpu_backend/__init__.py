"""What a paged-attention backend is given for each step."""
