"""Commands that look after the replicas of tablets on the disks of their servers; none of them needs a master.

quarantine.py     `rk tablet purge`: removes former replicas from the quarantine
rescue.py         `rk tablet unsafe-change-config`: lets a tablet continue without its majority
verify.py         `rk tablet verify`: checks whether all members have the same rows
"""
