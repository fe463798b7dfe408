"""What users test their own programs with: seed exploration, shrinking, checkers and the pytest plugin."""
