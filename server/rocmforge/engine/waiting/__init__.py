"""Requests that wait for something before they are the scheduler's: a grammar, rows of images."""
