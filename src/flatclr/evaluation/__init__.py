"""How good an encoder is: protocols that are fixed, versioned, and never select on test data."""
