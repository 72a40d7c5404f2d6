"""What runs on the device for layers of encoders. Needs Triton."""
