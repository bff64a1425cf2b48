"""What a model and a GPU cost: profiles, step times from them, memory for KV."""
