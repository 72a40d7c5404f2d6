"""From data to an encoder."""
