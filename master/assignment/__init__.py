"""Input and output of the pure assigner: each module carries out one kind of effects, or delivers one kind of events.

transitions.py     writes and reads of /unassigned
write_queue.py     chooses the writes that share a multi
dispatch.py        orders to region servers
registry.py        live servers; znodes of drained, fenced and barred servers
misplaced.py       orders to check replicas that servers report and the catalog contradicts
server_events.py   events of servers that register or expire; waits of a startup
history_writer.py  writes every step to the history
balancer.py        when to balance
waiters.py         requests that wait for a condition
effects.py         carries out the effects of the assigner
fencing.py         fencing at an operator's request
transition_times.py times of transitions, for the metrics
"""
