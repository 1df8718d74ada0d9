"""Identities of processes and users, their proof at the begin of a connection, and safe output of strangers' texts.

principal.py    kind and name: `server:…`, `user:alice`
keys.py         secrets of a cluster and the key of one identity, as files keep them (pure)
handshake.py    challenge and response with such a key, for either end (pure)
channel.py      the security of one connection, without a socket: handshake, then plain bytes
credentials.py  the directory of --certs-dir: the identity that this process proves, and those that it accepts
certificates/   authorities and certificates: making, issuing
certificate_facts.py  the contents of a certificate, and when it expires (pure)
revocation.py   credentials that end before they expire (pure)
printable.py    texts of strangers for terminals and logs
process.py      the credentials of this process, for every client that is given none
admin.py        who may read an admin port
making.py       makes and changes the files of --certs-dir
tls_channel.py  principals proved by certificates, over TLS
"""
