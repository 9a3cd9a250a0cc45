"""Finds positions by time and by subscription, and looks messages up by position."""
