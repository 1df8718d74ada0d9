"""Certificates of a cluster.

authority.py  makes authorities and the certificates that they issue (pure)
making.py     the files of a directory of --certs-dir: authority, certificates, rotation
"""
