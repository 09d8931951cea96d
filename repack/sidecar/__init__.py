"""The sidecar: its manifest, its container, and a reader."""
