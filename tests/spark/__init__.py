"""Bulk plans on Spark as in production: clusters of separate processes, `spark-submit`, Spark Connect."""
