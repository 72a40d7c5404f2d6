"""How good a frozen encoder is."""
