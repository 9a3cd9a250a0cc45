"""Finds positions by time and by subscription, and looks up messages by position."""
