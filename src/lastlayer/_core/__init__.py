"""What every part stands on: precision, ranks, files, names. It imports torch, numpy and filelock, and no part."""
