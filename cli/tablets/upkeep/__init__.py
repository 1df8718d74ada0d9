"""Commands that look after the replicas of tablets on the disks of their servers; none of them needs a master.

quarantine.py     `rk tablet purge`: former replicas leave the quarantine
rescue.py         `rk tablet unsafe-change-config`: a tablet goes on without its majority
verify.py         `rk tablet verify`: whether all members have the same rows
"""
