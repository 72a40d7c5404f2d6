"""From stored images to batches of augmented views."""
