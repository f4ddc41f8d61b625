"""Vision encoders and the adapter to a decoder (report 2.3)."""
