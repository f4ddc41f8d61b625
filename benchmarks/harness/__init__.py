"""Parts of the benchmarks of the evaluation harness."""
