"""Requests that clients get wrong, and what they are told: the table of `test_bad_requests`."""
