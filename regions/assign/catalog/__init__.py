"""Tables as the assigner sees them. Pure.

`catalogue` takes over committed records of tables and regions, `checks` repeats writes that the store refused because a
table's record had changed, `schema_rollout` has one region after the other opened with a new schema.
"""
