"""The stages of a verification; each adds what it finds to one verdict."""
