"""Helpers that users import by name, at the places where today's Ray has them."""
