"""The library of bundles on this machine, and where more come from: folders, servers, the Hugging Face hub."""
