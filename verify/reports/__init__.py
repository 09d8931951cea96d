"""Renderers: one verdict in, one text out. They decide nothing; what they say follows from the verdict alone."""
