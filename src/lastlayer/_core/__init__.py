"""What every part uses: precision, labels, ranks, files, names. It imports torch, numpy and filelock, and no part."""
