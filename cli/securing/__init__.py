"""`rk secure`: an open cluster becomes a secured one while it runs."""
