"""TLS for servers, peers and clients: contexts and connections in memory (`context`), key stores, names in them."""
