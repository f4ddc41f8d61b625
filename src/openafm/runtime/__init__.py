"""Generation: engines with KV caches, sampling, grammars (report 6, 7). Imports no tensor library."""
