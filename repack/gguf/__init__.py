"""GGUF files: their header, the table of tensors, and ggml's types."""
