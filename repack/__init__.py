"""The converter: Q6_K tensors of a GGUF model into a dpl sidecar."""
