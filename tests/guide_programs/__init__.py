"""Small programs in the manner of Ray's guide: they say `import ray`, and print the same on Ray and on dualray."""
