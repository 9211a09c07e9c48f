"""Doors to the outside that several collectors share."""
