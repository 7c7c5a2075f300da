"""The pieces of a training: its state, its batches, one step, and what is measured and kept on the way."""
