"""Tables of tablets beside tables of shared regions: speed, failover, and where the time goes."""
