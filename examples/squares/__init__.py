"""What attention adds on noisy squares: `python -m examples.square_sequences`."""
