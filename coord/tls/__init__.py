"""TLS for servers, peers and clients: contexts and in-memory connections (`context`), key stores, DER parsing."""
