"""The replicated state machine: znodes, sessions, watches, and the commands that change them.

Reading order: `command` (what the log carries), `machine` (applies it), `plan` (which changes a request makes, or which
error it gets), `datatree` and `node` (the znodes, and the only code that changes them). `sessions`, `acl` and `quota`
are state beside the znodes. `reads` and `watches` answer clients from one replica. `snapshot` writes and reads the
state; `levels` has the rules that changed between builds. From outside, use StateMachine, Command and the codecs of
`command`, WatchTable, ExpiryQueue and the levels.

Everything here is a pure function of the log: no clock, no randomness, no I/O.
"""
