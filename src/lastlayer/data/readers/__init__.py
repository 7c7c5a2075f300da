"""Readers of data sets: one file per format or family. `lastlayer.data` imports them all."""
