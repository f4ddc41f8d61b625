"""Sessions: requests, responses, streams and saved conversations."""
