"""A storm of operations on tables, and what must be left when it is over (TS-04).

Several clients create, alter, rename and delete tables, while masters come and go. `operations` makes up what they ask,
`ledger` keeps what they were told and says whether it makes sense, `picture` holds the catalogue against it. All pure:
the drill (`rk drill ddl-storm`) and the simulation of clusters send and measure, each in its own way.
"""
