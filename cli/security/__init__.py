"""Commands for the security of a cluster.

certs.py    `rk certs`: credentials of daemons and users
revoke.py   `rk certs revoke`, `rk certs revoked`
grants.py   `rk grant`, `rk revoke`, `rk acl list`, `rk whoami`
daemons.py  the credentials that `rk up` makes for its daemons
separation.py  what region servers have for the store in place of the masters' credential
"""
