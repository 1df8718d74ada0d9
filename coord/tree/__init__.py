"""The replicated state machine: znodes, sessions, watches, and the commands that change them."""
