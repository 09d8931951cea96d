"""The proof that a dpl sidecar equals its GGUF model."""
