"""The table no paper has: it makes no claims, and every number of it comes from the training loop."""
