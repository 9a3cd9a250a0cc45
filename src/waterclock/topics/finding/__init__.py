"""Positions: found by time and by subscription, and looked up."""
