"""What `import ray` finds, once it is installed: the directory that holds `ray`, for type checkers, too."""
