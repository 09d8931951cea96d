"""What decoding means, on the CPU: activations, kernel forms, their arithmetic, and the float64 oracle."""
